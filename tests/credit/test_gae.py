"""Tests of GAE: golden advantages, the inputs of a critic, and exactness by enumeration."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from selfplay.credit.base import learnable_turns, own_return
from selfplay.credit.critic import State, states_of
from selfplay.credit.gae import GAE
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_game import EARLY_END, MIXED, TWO_ROUNDS, Game, cosine


class Table:
    """A critic that reads its values from a table and records its training targets."""

    def __init__(self, values: Mapping[State, float]) -> None:
        self.table = values
        self.taught: list[tuple[State, float]] = []

    def values(self, states: Sequence[State]) -> list[float]:
        return [self.table[state] for state in states]

    def fit(self, states: Sequence[State], returns: Sequence[float]) -> dict[str, float]:
        self.taught += zip(states, returns, strict=True)
        self.table = dict.fromkeys(self.table, 1000.0)  # must not affect this batch
        return {"critic/loss": 0.5}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def by_state(values: np.ndarray) -> Table:
    """Return a critic with these [agent, state] values for the prompts of an enumerated game."""
    return Table({(s, a): float(values[a, s]) for a, s in np.ndindex(*values.shape)})


def arbitrary(game: Game) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(2, game.actions**2 + 1))


def test_the_golden_trajectory() -> None:
    turns = [turn("a_0", r, prompt_ids=(n,)) for n, r in enumerate((0, 0, 1))]
    critic = Table({(0,): 0.2, (1,): 0.4, (2,): 0.6})
    credit = GAE(critic=critic, whiten=False)
    found = advantages(credit.assign([group(episode(*turns))]))
    assert found == pytest.approx([0.751, 0.58, 0.4], abs=1e-12)
    # The targets are advantage + value.
    assert [state for state, _ in critic.taught] == [(0,), (1,), (2,)]
    assert [value for _, value in critic.taught] == pytest.approx([0.951, 0.98, 1.0], abs=1e-12)
    assert credit.metrics() == {"critic/loss": 0.5}
    assert credit.modules() == {"critic": critic}


def test_the_discount_is_per_turn_and_agents_have_trajectories_of_their_own() -> None:
    turns = [
        turn("a_0", 0, prompt_ids=(0,)),
        turn("b_0", 5, prompt_ids=(3,)),
        turn("a_0", 2, prompt_ids=(1,)),
    ]
    critic = Table({(0,): 1.0, (1,): 4.0, (3,): 1.0})
    found = GAE(critic=critic, gae_lambda=0.5, discount=0.5, whiten=False)
    # a_0: the last TD error is 2 - 4 = -2, the first 0 + .5 * 4 - 1 = 1, to which -2 / 4 is added.
    assert advantages(found.assign([group(episode(*turns))])) == [0.5, 4, -2]


def test_pay_at_an_untrained_turn_counts_for_the_turns_before_it() -> None:
    turns = [
        turn("a_0", 1, prompt_ids=(0,)),
        turn("a_0", 8, trainable=False),
        turn("a_0", 2, prompt_ids=(1,)),
        turn("a_0", 4, trainable=False),
    ]
    critic = Table({(0,): 1.0, (1,): 4.0})
    credit = GAE(critic=critic, gae_lambda=0.5, discount=0.5, whiten=False)
    # The last TD error is 2 + 4 / 2 - 4 = 0; the first 1 + 8 / 2 + 4 / 4 - 1 = 5.
    assert advantages(credit.assign([group(episode(*turns))])) == [5, 0]
    plain = GAE(critic=Table({(0,): 0.0, (1,): 0.0}), gae_lambda=1.0, whiten=False)
    assert advantages(plain.assign([group(episode(*turns))])) == [15, 6]


def test_whitening_is_over_tokens_and_leaves_the_returns_alone() -> None:
    critic = Table({(1, 2): 0.0})
    long = episode(turn("a_0", 1, completion_ids=(4, 5, 6)))
    found = GAE(critic=critic).assign([group(long, episode(turn("a_0", 0)))])
    assert advantages(found) == pytest.approx([0.5773503, -1.7320508], abs=1e-5)
    assert [value for _, value in critic.taught] == [1, 0]


def test_a_centralised_critic_sees_all_prompts_of_the_stage_and_no_later_one() -> None:
    def prompted(agent: str, *ids: int, stage: int) -> Any:
        return turn(agent, prompt_ids=ids, stage=stage)

    turns = [
        prompted("a_0", 1, stage=0),
        prompted("b_0", 2, stage=0),
        prompted("b_0", 3, stage=1),
        prompted("a_0", 4, 5, stage=2),
    ]
    known = learnable_turns([group(episode(*turns), episode(turns[1]))], own_return)
    wanted = [(2, 1), (1, 2), (1, 3), (3, 4, 5), (2,)]
    assert states_of(known, "all") == wanted
    assert states_of(known, "own") == [(1,), (2,), (3,), (4, 5), (2,)]
    unknown = [replace(each, stage=-1) for each in turns]
    found = states_of(learnable_turns([group(episode(*unknown))], own_return), "all")
    assert found == [(1,), (1, 2), (1, 3), (3, 4, 5)]
    with pytest.raises(ValueError, match="own or all, not 'both'"):
        states_of(known, "both")  # type: ignore[arg-type]


@pytest.mark.parametrize("game", [MIXED, TWO_ROUNDS, EARLY_END])
def test_with_lambda_1_the_gradient_is_exact_for_any_critic(game: Game) -> None:
    logits = game.table(seed=1)
    credit = GAE(critic=by_state(arbitrary(game)), gae_lambda=1.0, whiten=False)
    found = game.expected(credit, logits, size=1)
    assert found == pytest.approx(game.exact(logits), rel=1e-10, abs=1e-14)


def test_with_lambda_1_the_gradient_is_exact_for_a_centralised_critic() -> None:
    logits = TWO_ROUNDS.table(seed=1)
    values = arbitrary(TWO_ROUNDS)
    table: dict[State, float] = {
        (s, 1 - a, s, a): float(values[a, s]) for a, s in np.ndindex(*values.shape)
    }  # both agents' prompts, first that of the other agent
    credit = GAE(critic=Table(table), sees="all", gae_lambda=1.0, whiten=False)
    found = TWO_ROUNDS.expected(credit, logits, size=1)
    assert found == pytest.approx(TWO_ROUNDS.exact(logits), rel=1e-10, abs=1e-14)


def test_with_lambda_0_a_correct_critic_gives_the_exact_gradient() -> None:
    logits = TWO_ROUNDS.table(seed=1)
    critic = by_state(TWO_ROUNDS.values(logits))
    found = TWO_ROUNDS.expected(GAE(critic=critic, gae_lambda=0.0, whiten=False), logits, size=1)
    assert found == pytest.approx(TWO_ROUNDS.exact(logits), rel=1e-10, abs=1e-14)


def test_with_lambda_0_a_wrong_critic_biases_the_gradient() -> None:
    """Check that with lambda 0 the critic's value of the next state replaces the later pay."""
    logits, wrong = TWO_ROUNDS.table(seed=1), arbitrary(TWO_ROUNDS)

    def pay(history: Any) -> tuple[float, float]:
        if len(history) == 2:
            return (0.0, 0.0)
        predicted = wrong[:, TWO_ROUNDS.state(history, 1)]
        left, right = TWO_ROUNDS.pay(history)
        return (left + float(predicted[0]), right + float(predicted[1]))

    credit = GAE(critic=by_state(wrong), gae_lambda=0.0, whiten=False)
    found = TWO_ROUNDS.expected(credit, logits, size=1)
    exact = TWO_ROUNDS.exact(logits)
    believed = replace(TWO_ROUNDS, pay=pay).exact(logits)
    assert found[:, :-1] == pytest.approx(exact[:, :-1], rel=1e-10, abs=1e-14)
    assert found[:, -1] == pytest.approx(believed[:, -1], rel=1e-10, abs=1e-14)
    assert cosine(found[1, -1], exact[1, -1]) == pytest.approx(-1), "right_0's gradient is reversed"


def test_whitening_changes_the_direction_of_the_gradient() -> None:
    logits = MIXED.table(seed=1)
    credit = GAE(critic=by_state(MIXED.values(logits)))
    assert cosine(MIXED.expected(credit, logits, size=2), MIXED.exact(logits)) < 0.99


@pytest.mark.parametrize("settings", [{"gae_lambda": 1.1}, {"discount": -0.1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lie in"):
        GAE(critic=Table({}), **settings)  # type: ignore[arg-type]


class Forgetful(Game):
    """A game in which the prompt of the second round does not show the first round."""

    def state(self, history: Any, round_number: int) -> int:
        return self.actions**2 if round_number == 0 else 0


def test_prompts_without_history_make_lambda_0_biased_with_true_values() -> None:
    def late(history: Any) -> tuple[float, float]:
        """Return pay of the second round that depends on the moves of the first."""
        (a, b), paid = history[0], float(len(history) == 2)
        return (paid * (2 * a + history[-1][0]), paid * (b - 3 * a * b))

    game = Forgetful(actions=2, pay=late, over=TWO_ROUNDS.over)
    logits = game.table(seed=1)
    exact, critic = game.exact(logits), by_state(game.values(logits))
    trusting = GAE(critic=critic, gae_lambda=1.0, whiten=False)
    assert game.expected(trusting, logits, size=1) == pytest.approx(exact, rel=1e-10, abs=1e-14)
    credit = GAE(critic=by_state(game.values(logits)), gae_lambda=0.0, whiten=False)
    found = game.expected(credit, logits, size=1)
    assert found[:, -1] == pytest.approx(0.0, abs=1e-14), (
        "the credit of the first round ignores the second"
    )
    assert np.abs(exact[:, -1]).max() > 0.1
    assert found[:, 0] == pytest.approx(exact[:, 0], rel=1e-10, abs=1e-14)
