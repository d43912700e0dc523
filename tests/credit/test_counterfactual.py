"""Tests of counterfactual credit: replays by hand, and the exactness of its gradient."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from selfplay.arena import Arena
from selfplay.credit.counterfactual import Counterfactual
from selfplay.types import Action, Episode, Observation, Status, Task
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_arena import arena_of, gradient, groups_of
from tests.helpers.enumerated_game import EARLY_END, MIXED, TWO_ROUNDS, Game


class Bridge(Arena):
    """An arena of two carriers and a watcher: for each "carry" the carrier gets 2, the watcher 1.

    The first stage with a "carry" is the last one; without any there are three stages. The action
    "break" raises an error.
    """

    name = "bridge_v0"
    roles = {"carrier": 2, "watcher": 1}

    def setup(self, task: Task, rng: random.Random) -> None:
        self.rounds = 0

    def acting(self) -> Sequence[str]:
        return ["carrier_0", "carrier_1"]

    def view(self, agent: str) -> Observation:
        return Observation()

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        if "break" in actions.values():
            raise RuntimeError("it broke")
        self.rounds += 1
        for agent, action in actions.items():
            if action == "carry":
                self.pay(agent, 2.0)
                self.pay("watcher_0", 1.0)
                self.finish()
        if self.rounds == 3:
            self.finish()


def carried(*actions: str | None, status: Status = Status.FINISHED) -> Episode:
    turns = [
        turn(f"carrier_{n % 2}", action=action, stage=n // 2) for n, action in enumerate(actions)
    ]
    return episode(*turns, status=status)


def test_by_hand() -> None:
    credit = Counterfactual(arena=Bridge)
    # If both carry, the team's mean is (2 + 2 + 2) / 3 = 2; without one of them (2 + 1) / 3 = 1.
    assert advantages(credit.assign([group(carried("carry", "carry"))])) == [1, 1]
    # One carries: the mean is 1. Without its move all are asked again and do nothing: it is 0.
    assert advantages(credit.assign([group(carried("carry", "wait"))])) == [1, 0]
    assert credit.metrics() == {
        "replays": 3,
        "replays_beyond_moves": 1,
        "replays_cut": 0,
        "replays_failed": 0,
        "beyond_moves_share": pytest.approx(1 / 3),
    }
    own = Counterfactual(arena=Bridge, returns="own")
    assert advantages(own.assign([group(carried("carry", "carry"))])) == [2, 2]


def test_the_default_action_replaces_the_removed_move() -> None:
    credit = Counterfactual(arena=Bridge, default="carry")
    assert advantages(credit.assign([group(carried("carry", "wait"))])) == [0, -1]


def test_later_moves_are_kept_in_their_order() -> None:
    # Without carrier_0's "wait" nothing changes. Without its "carry" there is a third stage.
    found = Counterfactual(arena=Bridge).assign([group(carried("wait", "wait", "carry", "wait"))])
    assert advantages(found) == [0, 0, 1, 0]


def test_long_replays_are_cut_and_truncated_episodes_are_replayed() -> None:
    credit = Counterfactual(arena=Bridge, limit=2)
    credit.assign([group(carried("carry", "wait"))])
    assert credit.metrics()["replays_cut"] == 1
    cut = group(carried("wait", "wait", status=Status.TRUNCATED))
    assert advantages(Counterfactual(arena=Bridge, default="carry").assign([cut])) == [-1, -1]
    assert advantages(credit.assign([cut])) == [0, 0]
    assert credit.metrics()["replays_cut"] == 0


def test_a_failed_replay_gives_advantage_0_and_is_counted() -> None:
    credit = Counterfactual(arena=Bridge, default="break")
    assert advantages(credit.assign([group(carried("carry", "carry"))])) == [0, 0]
    assert credit.metrics()["replays_failed"] == 2


@pytest.mark.parametrize("returns", ["own", "team"])
def test_in_games_of_one_stage_the_expectation_is_the_policy_gradient(returns: str) -> None:
    credit = Counterfactual(arena=arena_of(MIXED), returns=returns)  # type: ignore[arg-type]
    logits = MIXED.table(seed=2)
    found = expected(credit, MIXED, logits)
    exact = MIXED.exact(logits, team=returns == "team")
    assert found == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("game", [TWO_ROUNDS, EARLY_END])
def test_before_the_last_stage_it_is_biased_by_the_replays_score(game: Game) -> None:
    credit = Counterfactual(arena=arena_of(game), returns="own")
    logits = game.table(seed=2)
    bias = np.zeros(tuple(logits.shape))
    chances = logits.softmax(-1).numpy()
    for history in game.histories():
        chance = float(game.logprob(logits, history).exp())
        for agent in (0, 1):
            score = -chances[agent, -1]
            score[history[0][agent]] += 1
            first = (0, history[0][1]) if agent == 0 else (history[0][0], 0)
            other = [first, *history[1:]]
            while not game.over(tuple(other)):
                other.append((0, 0))
            stop = next(n for n in range(1, 3) if game.over(tuple(other[:n])))
            paid = sum(game.pay(tuple(other[: n + 1]))[agent] for n in range(stop))
            bias[agent, -1] += chance * paid * score
    found, exact = expected(credit, game, logits), game.exact(logits)
    assert found[:, -1] == pytest.approx((exact - bias)[:, -1], abs=1e-12)
    assert np.abs(bias[:, -1]).max() > 0.01
    assert found[:, :-1] == pytest.approx(exact[:, :-1], abs=1e-12)


def expected(credit: Counterfactual, game: Game, logits: torch.Tensor) -> np.ndarray:
    found = np.zeros(tuple(logits.shape))
    for weight, one in groups_of(game, logits, size=1):
        found += weight * gradient(game, logits, credit, one)
    return found


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="returns is one of own, team, not 'all'"):
        Counterfactual(arena=Bridge, returns="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit"):
        Counterfactual(arena=Bridge, limit=0)
