"""Tests of shaping: the penalties by hand, and the turns that they change."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from selfplay.credit.rewards import cosine_length, overlong
from selfplay.credit.shaping import (
    Confidence,
    CosineLength,
    EachTurn,
    OptimalToolCalls,
    Overlong,
    Shaping,
)
from selfplay.errors import ConfigError
from selfplay.types import Episode, StopReason, ToolCall, Turn
from tests.helpers.builders import episode, group, turn


def test_the_golden_overlong_penalties() -> None:
    lengths = (0, 16384, 17408, 18432, 20480, 99999)
    found = [overlong(length, limit=20480, buffer=4096) for length in lengths]
    assert found == [0, 0, -0.25, -0.5, -1, -1]


def test_the_cosine_goes_from_short_to_long() -> None:
    found = [cosine_length(n, limit=100, short=2.0, long=1.0) for n in (0, 50, 100, 200)]
    assert found == pytest.approx([2.0, 1.5, 1.0, 1.0])


def test_overlong_adds_and_cosine_replaces() -> None:
    long = turn("solver_0", 1.0, completion_ids=range(10))
    assert Overlong(limit=10, buffer=4, weight=0.5).reward(long) == pytest.approx(0.5)
    cosine = CosineLength(limit=20)
    assert cosine.reward(long) == pytest.approx(1.5)
    assert cosine.reward(turn("solver_0", 0.0, completion_ids=range(10))) == pytest.approx(-5.0)
    cut = turn("solver_0", 1.0, stop_reason=StopReason.LENGTH)
    assert cosine.reward(cut) == -10.0
    assert cosine.reward(calling("solver_0", 1)) == 0.0  # a tool call is no answer


def test_confidence_is_the_mean_log_probability() -> None:
    answer = turn("solver_0", 1.0, completion_ids=range(4), logprobs=[-0.1, -0.2, -0.3, -0.6])
    assert Confidence().reward(answer) == pytest.approx(-0.3)
    assert Confidence(weight=2.0, keep_reward=True).reward(answer) == pytest.approx(0.4)
    assert Confidence(no_answer=-5.0).reward(turn("solver_0", 1.0, action=None)) == -5.0


def test_confidence_is_minus_the_entropy_on_average() -> None:
    probabilities = np.array([0.7, 0.2, 0.1])
    drawn = np.random.default_rng(0).choice(3, size=20_000, p=probabilities)
    answer = turn("solver_0", completion_ids=drawn, logprobs=np.log(probabilities)[drawn])
    entropy = -(probabilities * np.log(probabilities)).sum()
    assert Confidence().reward(answer) == pytest.approx(-entropy, abs=0.02)


def test_groups_are_shaped_once_and_shared_turns_stay_shared() -> None:
    stem = turn("solver_0", 1.0, completion_ids=range(8), info={"valid": True})
    one = group(episode(stem, turn("solver_0", 2.0)), episode(stem, turn("solver_0", 0.0)))
    shapers = {name: Overlong(limit=8, buffer=4) for name in ("first", "second")}
    (kept,), (played, other) = Shaping(shapers).apply([one], [one, group(name="2")])
    assert [t.reward for e in kept.episodes for t in e.turns] == [-1.0, 2.0, -1.0, 0.0]
    first, second = (e.turns[0] for e in kept.episodes)
    assert first is second is played.episodes[0].turns[0]
    assert first.info == {"valid": True, "unshaped_reward": 1.0}
    assert not other.episodes


def test_without_shapers_nothing_is_touched() -> None:
    one = group(episode(turn("solver_0", 1.0)))
    ((kept,),) = Shaping().apply([one])
    assert kept is one


@pytest.mark.parametrize(("limit", "buffer"), [(10, 0), (10, 11), (0, 0)])
def test_an_impossible_buffer_or_limit_is_refused(limit: int, buffer: int) -> None:
    with pytest.raises(ValueError, match="buffer"):
        Overlong(limit=limit, buffer=buffer)
    with pytest.raises(ValueError, match="limit is at least 1"):
        cosine_length(3, limit=0, short=1.0, long=0.0)


def calling(agent: str, calls: int) -> Turn:
    made = tuple(ToolCall(name="calculator", result="4") for _ in range(calls))
    return turn(agent, action=None, final=False, tool_calls=made)


def test_right_answers_are_paid_less_after_more_calls() -> None:
    turns = [
        turn("solver_0", 1.0),
        calling("solver_1", 1),
        turn("solver_1", 1.0),
        calling("solver_2", 1),
        calling("solver_2", 2),
        turn("solver_2", 1.0),
        turn("solver_2", 1.0),  # another move, without calls
        calling("solver_3", 1),
        turn("solver_3", -1.0),
    ]
    # The factors are cos(0), cos(pi / 3) and cos(3 pi / 7).
    expected = [1.0, 0.0, 0.5, 0.0, 0.0, 0.2225209, 1.0, 0.0, -1.0]
    assert OptimalToolCalls().of_episode(episode(*turns)) == pytest.approx(expected)
    # The factor is cos(pi / 6) / 2.
    short = OptimalToolCalls(c=4.0, scale=0.5).of_episode(episode(*turns[1:3]))
    assert short == pytest.approx([0, 0.4330127])
    with pytest.raises(ValueError, match="must be positive"):
        OptimalToolCalls(c=0)


def test_calls_before_a_branch_count_in_the_branch() -> None:
    tool, move = calling("solver_0", 1), turn("solver_0", 1.0)
    parent = episode(tool, move)
    branch = replace(episode(tool, replace(move, reward=0.5)), branch_of=0, shared_turns=2)
    ((tree,),) = Shaping({"otc": OptimalToolCalls()}).apply([group(parent, branch)])
    assert [each.turns[1].reward for each in tree.episodes] == pytest.approx([0.5, 0.25])
    assert tree.episodes[0].turns[0] is tree.episodes[1].turns[0]


class Given:
    """A custom shaper that returns the result of a function of the turns."""

    def __init__(self, make: Callable[[Sequence[Turn]], Any]) -> None:
        self.make = make

    def rewards(self, turns: Sequence[Turn]) -> Any:
        return self.make(turns)


class Whole(Given):
    """A custom shaper with a method for one episode."""

    def of_episode(self, episode: Episode) -> Any:
        return self.make(episode.turns)


class Unwritten(EachTurn):
    """A shaper without the method reward."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda turns: turns[9], r" raised IndexError: .*test_shaping\.py, line \d+\)"),
        (lambda turns: [float("nan")] * 2, " gave a turn of solver_0 the reward nan; a reward is"),
        (lambda turns: [None, 1.0], " gave a turn of solver_0 the reward None"),
        (lambda turns: ["high", 1.0], " gave a turn of solver_0 the reward 'high'"),
        (lambda turns: [1.0], " returned 1 rewards for 2 turns"),
        (lambda turns: None, " returned NoneType, not a list of rewards"),
    ],
)
def test_a_fault_of_a_term_is_one_line_that_names_it(make: Any, words: str) -> None:
    one = group(episode(turn("solver_0"), turn("solver_0")))
    for term, method in ((Given(make), "Given.rewards"), (Whole(make), "Whole.of_episode")):
        with pytest.raises(ConfigError, match=rf"shaping\.bonus: {method}{words}"):
            Shaping({"bonus": term}).apply([one])


def test_a_term_without_its_method_is_refused() -> None:
    nothing: Any = object()
    with pytest.raises(ConfigError, match=r"shaping\.bonus: object has no method rewards; write"):
        Shaping({"bonus": nothing})
    with pytest.raises(ConfigError, match="shaping: Unwritten has no method reward; write it"):
        Shaping({"bonus": Unwritten()}).apply([group(episode(turn("solver_0")))])
