"""Tests of resampling: failures in proportion, the cleanest successes, failed episodes."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler.resample import Resample
from selfplay.types import Episode, Group, Status, ToolCall
from tests.helpers.builders import episode, turn
from tests.helpers.walks import Listed


def sampled(sampler: Resample, make: Callable[[int], Episode], *, seed: int = 0) -> list[Group]:
    """Return groups of the episodes that `make` returns for the members."""

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        return [make(spec.member) for spec in specs]

    curriculum = Listed()
    groups = sampler.sample(curriculum, play, step=2, seed=seed)
    assert curriculum.observed == [(2, ["2.0.0", "2.0.1"])]  # with all played groups
    assert [len(g.episodes) for g in sampler.played()] == [
        sampler.group_size * sampler.oversample
    ] * 2
    return groups


def attempt(number: int, reward: float, *, slips: int = 0, **fields: Any) -> Episode:
    """Return an episode of four turns, `slips` of them without an action; its seed is `number`."""
    turns = [turn("a_0", action=None if n < slips else "do") for n in range(3)]
    last = turn("a_0", reward, action=None if slips > 3 else "do")
    return episode(*turns, last, seed=number, **fields)


def kept(groups: Sequence[Group]) -> list[list[int]]:
    return [[episode.seed for episode in group.episodes] for group in groups]


def test_half_of_the_failures_and_the_cleanest_successes() -> None:
    sampler = Resample(group_size=4)
    # Members 0 to 3 fail, 4 to 7 succeed with 3, 1, 0 and 2 slips.
    slips = {4: 3, 5: 1, 6: 0, 7: 2}
    groups = sampled(sampler, lambda n: attempt(n, float(n > 3), slips=slips.get(n, 0)))
    for found in kept(groups):
        assert len(found) == 4 and sum(n < 4 for n in found) == 2
        assert found[2:] == [5, 6]
    assert sampler.metrics() == {
        "success_played": 0.5,
        "penalty_played": 0.375,
        "success_kept": 0.5,
        "penalty_kept": 0.125,
    }


def test_failures_are_drawn_uniformly_and_by_the_seed() -> None:
    counts = [0] * 6
    for seed in range(200):
        for found in kept(sampled(Resample(group_size=4), lambda n: attempt(n, n > 5), seed=seed)):
            assert sum(n < 6 for n in found) == 3
            for n in found[:3]:
                counts[n] += 1
    # In 400 draws of three of six each is expected 200 times, standard deviation 10.
    assert all(abs(count - 200) < 50 for count in counts)
    once, again = (sampled(Resample(), lambda n: attempt(n, 0.0)) for _ in range(2))
    assert kept(once) == kept(again)


@pytest.mark.parametrize("wins", range(9))
def test_the_success_rate_stays_and_the_group_is_full(wins: int) -> None:
    groups = sampled(Resample(group_size=4), lambda n: attempt(n, float(n < wins)))
    for found in kept(groups):
        right = sum(n < wins for n in found)
        assert len(found) == 4 and abs(right - wins / 2) <= 0.5
        assert 0 < right < 4 or wins in (0, 8), "a lone success or failure is kept"


def test_a_metric_of_the_arena_may_count_too() -> None:
    def make(number: int) -> Episode:
        return attempt(number, 1.0, metrics={"tool_errors": Random(number).random()})

    order = sorted(range(6), key=lambda n: Random(n).random())
    assert kept(sampled(Resample(group_size=3, penalty="tool_errors"), make))[0] == sorted(
        order[:3]
    )


def test_a_success_without_a_tool_call_is_not_clean() -> None:
    def make(number: int) -> Episode:
        """Return an episode in which `number` of four calls fail; 4 means no call."""
        calls = tuple(ToolCall(name="run", error="Failed" * (n < number)) for n in range(4))
        first = turn("a_0", tool_calls=calls if number < 4 else (), final=False)
        return episode(first, turn("a_0", 1.0), seed=number)

    def best(*roles: str) -> list[int]:
        sampler = Resample(group_size=4, oversample=2, tool_roles=roles)
        return sorted(kept(sampled(sampler, lambda n: make((0, 1, 3, 4)[n % 4])))[0])

    # There are two members of each kind. No call counts as 1/2, which is above 1/4.
    assert best("a") == [0, 0, 1, 1]
    assert best() == best("b") == [0, 0, 4, 4]
    sampler = Resample(group_size=1, oversample=1, tool_roles=("a",))
    sampled(sampler, lambda n: make(4))
    assert sampler.metrics()["penalty_kept"] == 0.5


def test_the_threshold_is_of_the_mean_over_agents() -> None:
    def make(number: int) -> Episode:
        return episode(turn("a_0", 1.0), turn("b_0", -0.5 if number else 0.5), seed=number)

    sampler = Resample(group_size=1, threshold=0.5)
    sampled(sampler, make)
    assert sampler.metrics()["success_played"] == 0.5


def test_failed_episodes_only_fill_up_a_group() -> None:
    def make(whole: int) -> Callable[[int], Episode]:
        return lambda n: attempt(n, 1.0, status=Status.FINISHED if n < whole else Status.FAILED)

    assert kept(sampled(Resample(group_size=2), make(3)))[0] == [0, 1]
    assert kept(sampled(Resample(group_size=2), make(1)))[0] == [0, 1]
    assert kept(sampled(Resample(group_size=2), make(0)))[0] == [0, 1]


def test_sizes_below_one_are_refused() -> None:
    for settings in ({"group_size": 0}, {"oversample": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Resample(**settings)  # type: ignore[arg-type]
