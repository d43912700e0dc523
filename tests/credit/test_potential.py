"""Tests of potential-based shaping: sums that telescope, and the unchanged policy gradient."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from arenas.desk.arena import Desk
from arenas.desk.tasks import desk_tasks
from selfplay.arena import Arena
from selfplay.credit.base import own_return_to_go
from selfplay.credit.potential import PotentialBased
from selfplay.credit.rloo import RLOO
from selfplay.credit.shaping import EpisodeShaper, Shaping, ToolCost
from selfplay.errors import ConfigError
from selfplay.types import Episode, Group, Status, Task, ToolCall, Turn
from tests.helpers.builders import episode, group, turn
from tests.helpers.enumerated_arena import GameArena
from tests.helpers.enumerated_game import AGENTS, EARLY_END, TWO_ROUNDS, Game, History

PHI = {state: Random(state).uniform(-3, 3) for state in range(10)}
"""Arbitrary potentials of the states of the enumerated games."""


def with_potentials(played: Episode) -> Episode:
    """Return the episode with `PHI` of each move's state, twice as large for the second agent."""
    turns = tuple(
        replace(t, info={"potential": PHI[t.prompt_ids[0]] * (1 + AGENTS.index(t.agent))})
        for t in played.turns
    )
    return replace(played, turns=turns)


def shaped(played: Episode, *shapers: Any) -> Episode:
    ((one,),) = Shaping(dict(zip("abc", shapers, strict=False))).apply([group(played)])
    return one.episodes[0]


def test_by_hand() -> None:
    moves = [("a_0", 2.0, 1.0), ("b_0", 5.0, 0.0), ("a_0", 3.0, 0.5), ("a_0", -1.0, 0.0)]
    played = episode(
        *(turn(agent, reward, info={"potential": phi}) for agent, phi, reward in moves)
    )
    found = shaped(played, PotentialBased(discount=0.5, weight=2.0))
    # a_0: 1 + 2 (0.5 * 3 - 2), 0.5 + 2 (0.5 * -1 - 3), 0 + 2 (0 + 1); b_0: 2 (0 - 5).
    assert [t.reward for t in found.turns] == [0.0, -10.0, -6.5, 2.0]
    assert [t.info["unshaped_reward"] for t in found.turns] == [1.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("game", [TWO_ROUNDS, EARLY_END], ids=["two_rounds", "early_end"])
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_the_discounted_sum_over_an_episode_telescopes(game: Game, discount: float) -> None:
    for history in game.histories():
        played = with_potentials(game.played(history))
        after = shaped(played, PotentialBased(discount=discount, weight=1.5))
        for agent in AGENTS:
            terms = [
                new.reward - old.reward
                for old, new in zip(played.turns, after.turns, strict=True)
                if old.agent == agent
            ]
            first = next(t for t in played.turns if t.agent == agent).info["potential"]
            total = sum(term * discount**number for number, term in enumerate(terms))
            assert total == pytest.approx(-1.5 * first, abs=1e-12)


Plays = list[list[tuple[int, int, int, float]]]
"""The moves of each play: agent, state, action and discount^t G_t."""


def plays(game: Game, discount: float, *shapers: Any) -> Plays:
    """Return the moves of all plays with their shaped returns."""
    found = []
    for history in game.histories():
        after = shaped(with_potentials(game.played(history)), *shapers)
        returns = own_return_to_go(after, discount=discount)
        found.append(
            [
                (AGENTS.index(t.agent), t.prompt_ids[0], t.completion_ids[0], discount**t.stage * g)
                for t, g in zip(after.turns, returns, strict=True)
            ]
        )
    return found


def exact_gradient(logits: torch.Tensor, every: Plays) -> np.ndarray[Any, Any]:
    """Return the sum over plays of p sum_t discount^t G_t grad log pi, in float64."""
    chances = logits.softmax(-1).numpy()
    found = np.zeros_like(chances)
    for moves in every:
        chance = np.prod([chances[agent, state, action] for agent, state, action, _ in moves])
        for agent, state, action, value in moves:
            score = -chances[agent, state]
            score[action] += 1
            found[agent, state] += chance * value * score
    return found


@pytest.mark.parametrize("game", [TWO_ROUNDS, EARLY_END], ids=["two_rounds", "early_end"])
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_the_exact_policy_gradient_is_the_same_at_every_policy(game: Game, discount: float) -> None:
    plain = plays(game, discount)
    term = plays(game, discount, PotentialBased(discount=discount, weight=2.0))
    other = plays(game, discount, PotentialBased(discount=discount / 2, weight=2.0))
    for seed in range(5):
        logits = game.table(seed)
        wanted = exact_gradient(logits, plain)
        assert np.abs(exact_gradient(logits, term) - wanted).max() < 1e-12
        if discount == 1:
            assert np.abs(game.exact(logits) - wanted).max() < 1e-12
        # With another discount than the returns have, the term is no difference of potentials.
        assert np.abs(exact_gradient(logits, other) - wanted).max() > 1e-3


def ascended(game: Game, *shapers: Any) -> np.ndarray[Any, Any]:
    """Return the policy after gradient ascent on the first agent's return; the second is fixed."""
    logits, every = game.table(0), plays(game, 1.0, *shapers)
    for _ in range(300):
        logits[0] += 2.0 * torch.from_numpy(exact_gradient(logits, every)[0])
    return logits.softmax(-1).numpy()[0]


def test_ascent_ends_at_the_same_optimum_but_not_with_another_term() -> None:
    plain = ascended(TWO_ROUNDS)
    assert np.abs(ascended(TWO_ROUNDS, PotentialBased()) - plain).max() < 1e-9

    class PaidForZero:
        """A shaper that pays for the action 0; its term is no difference of potentials."""

        def rewards(self, turns: list[Turn]) -> list[float]:
            return [t.reward + 5.0 * (t.action == "0") for t in turns]

    assert np.abs(ascended(TWO_ROUNDS, PaidForZero()) - plain).max() > 0.5


def test_a_method_that_compares_sums_gets_the_same_advantages() -> None:
    logits = TWO_ROUNDS.table(1)
    histories: list[History] = TWO_ROUNDS.histories()[:4]
    one = group(*(with_potentials(TWO_ROUNDS.played(each)) for each in histories))
    ((after,),) = Shaping({"potential": PotentialBased()}).apply([one])
    method = RLOO(group_by="agent")
    found = [[s.advantage for s in method.assign([each])] for each in (one, after)]
    assert np.allclose(found[0], found[1], rtol=0, atol=1e-12) and np.any(found[0])
    assert logits.dtype == torch.float64


def test_tool_calls_and_moves_without_potential_keep_their_reward() -> None:
    called = turn("a_0", 0.0, final=False, tool_calls=(ToolCall(name="t", arguments="{}"),))
    played = episode(called, turn("a_0", 1.0, info={"potential": 2.0}), turn("b_0", 4.0))
    found = shaped(played, ToolCost(cost=0.25), PotentialBased())
    assert [t.reward for t in found.turns] == [-0.25, -1.0, 4.0]


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_the_sum_telescopes_over_tool_calls_and_untrained_turns(discount: float) -> None:
    def call() -> Turn:
        return turn("a_0", final=False, action=None)

    def move(potential: float, *, trainable: bool = True) -> Turn:
        return turn("a_0", info={"potential": potential}, trainable=trainable)

    plays = [
        [move(3.0), move(2.0), move(1.0)],
        [call(), call(), move(3.0), call(), move(2.0)],
        [move(3.0), move(7.0, trainable=False), move(1.0)],
        [call(), move(3.0), move(2.0), move(9.0, trainable=False)],
    ]
    for turns in plays:
        after = shaped(episode(*turns), PotentialBased(discount=discount))
        assert own_return_to_go(after, discount=discount)[0] == -3.0
    left_out = shaped(episode(*plays[2]), PotentialBased(discount=0.5)).turns
    assert [t.reward for t in left_out] == [0.25 - 3.0, 0.0, -1.0]


def test_an_arena_without_potential_is_refused_and_a_failed_episode_is_not() -> None:
    with pytest.raises(ConfigError, match=r"write Arena\.potential"):
        shaped(episode(turn("a_0", 1.0)), PotentialBased())
    failed = replace(episode(turn("a_0", 1.0)), status=Status.FAILED)
    assert shaped(failed, PotentialBased()).turns[0].reward == 1.0


def test_branches_with_different_next_states_are_refused() -> None:
    stem = turn("a_0", 0.0, info={"potential": 1.0})
    ends = [turn("a_0", 0.0, info={"potential": phi}) for phi in (2.0, 3.0)]
    branched = replace(episode(stem, ends[1]), branch_of=0, shared_turns=1)
    one: Group = group(episode(stem, ends[0]), branched)
    with pytest.raises(ConfigError, match="does not branch"):
        Shaping({"potential": PotentialBased()}).apply([one])
    same = replace(branched, turns=(stem, replace(ends[0])))
    ((after,),) = Shaping({"potential": PotentialBased()}).apply([group(one.episodes[0], same)])
    assert after.episodes[0].turns[0] is after.episodes[1].turns[0]


def test_settings_are_checked_and_it_is_an_episode_shaper() -> None:
    for settings in ({"discount": 1.5}, {"weight": float("nan")}):
        with pytest.raises(ValueError, match="discount lies in"):
            PotentialBased(**settings)
    assert isinstance(PotentialBased(), EpisodeShaper)
    assert not isinstance(ToolCost(cost=1.0), EpisodeShaper)


class Counting(GameArena):
    """A game in which the first agent's potential is the number of rounds so far."""

    def potential(self, agent: str) -> float | None:
        return len(self.played) if agent == AGENTS[0] else None


def test_an_arena_notes_the_potential_of_the_state_in_which_an_agent_moved() -> None:
    arena: Arena = Counting(TWO_ROUNDS)
    arena.begin(Task(id="t"), seed=0)
    for number in (0, 1):
        arena.play_stage(dict.fromkeys(AGENTS, "1"))
        assert arena.notes == {AGENTS[0]: {"potential": float(number)}}
    plain: Arena = GameArena(TWO_ROUNDS)
    plain.begin(Task(id="t"), seed=0)
    plain.play_stage(dict.fromkeys(AGENTS, "1"))
    assert plain.notes == {}


def test_the_potential_of_a_desk_is_its_distance_from_the_right_database() -> None:
    found = set()
    for task in desk_tasks(count=12, seed=3):
        arena = Desk()
        arena.begin(task, seed=0)
        assert arena.potential("user_0") is None
        found.add(arena.potential("agent_0"))
        arena.tables = arena.desk.wanted
        assert arena.potential("agent_0") == 0
    assert 0.0 in found and min(each for each in found if each is not None) <= -1
