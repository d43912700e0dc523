"""Tests of adaptive sampling: rounds, balanced groups, equality with independent sampling."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler.adaptive import Adaptive
from selfplay.sampler.independent import Independent
from selfplay.types import Episode, Group, Status
from tests.helpers.builders import episode, turn
from tests.helpers.walks import Listed


class Arcade:
    """A rollout function for two tasks; a rule gives the reward of each member."""

    def __init__(self, rule: Callable[[int, int], float | None]) -> None:
        self.rule = rule
        self.rounds: list[list[EpisodeSpec]] = []

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        self.rounds.append(list(specs))
        seeds = sorted({spec.seed for every in self.rounds for spec in every})
        first = self.rounds[0][0].seed
        assert len(seeds) <= 2, "siblings share a seed"
        return [self._played(spec, 0 if spec.seed == first else 1) for spec in specs]

    def _played(self, spec: EpisodeSpec, task: int) -> Episode:
        reward = self.rule(task, spec.member)
        status = Status.FAILED if reward is None else Status.FINISHED
        last = turn("a_0", reward or 0.0)
        return episode(last, seed=spec.member, task=spec.task, status=status)


def sampled(sampler: Any, rule: Callable[[int, int], float | None]) -> tuple[list[Group], Arcade]:
    arcade, curriculum = Arcade(rule), Listed()
    groups = sampler.sample(curriculum, arcade, step=2, seed=7)
    assert curriculum.observed == [(2, ["2.0.0", "2.0.1"])]
    return groups, arcade


def kept(group: Group) -> list[int]:
    return [each.seed for each in group.episodes]


def test_a_hard_task_is_played_until_its_group_is_balanced() -> None:
    sampler = Adaptive(group_size=4, round_size=4, rounds=5)
    # Task 0: every second member succeeds. Task 1: members 9 and 11 do.
    (easy, hard), arcade = sampled(sampler, lambda t, n: float(n % 2 if t == 0 else n in (9, 11)))
    assert [len(specs) for specs in arcade.rounds] == [8, 4, 4]
    assert kept(easy) == [0, 1, 2, 3]
    assert len(kept(hard)) == 4 and {9, 11} < set(kept(hard))
    assert [len(group.episodes) for group in sampler.played()] == [4, 12]
    assert sampler.metrics() == {
        "episodes_per_task": 8.0,
        "unfinished": 0.0,
        "success_played": 4 / 16,
        "success_kept": 0.5,
    }


def test_a_task_without_a_success_ends_with_a_full_group_of_failures() -> None:
    sampler = Adaptive(group_size=4, round_size=2, rounds=3)
    (never, once), arcade = sampled(sampler, lambda t, n: float(t and n == 5))
    assert [len(specs) for specs in arcade.rounds] == [4, 4, 4]
    assert len(kept(never)) == len(kept(once)) == 4 and 5 in kept(once)
    assert sampler.metrics()["unfinished"] == 1.0


def test_one_success_is_enough_if_so_configured() -> None:
    sampler = Adaptive(group_size=4, round_size=4, rounds=9, until="success")
    (_, late), arcade = sampled(sampler, lambda t, n: float(t == 0 or n >= 6))
    assert len(arcade.rounds) == 2
    assert len(kept(late)) == 4 and {6, 7} < set(kept(late))


def test_an_odd_group_needs_more_failures_than_successes() -> None:
    sampler = Adaptive(group_size=3, round_size=2, rounds=2)
    _, arcade = sampled(sampler, lambda t, n: float(n == 0))
    assert [len(specs) for specs in arcade.rounds] == [4, 4]


def test_a_success_is_not_enough_for_a_group_that_is_not_whole() -> None:
    sampler = Adaptive(group_size=4, round_size=2, rounds=3, until="success")
    groups, arcade = sampled(sampler, lambda t, n: 1.0)
    assert [len(specs) for specs in arcade.rounds] == [4, 4]
    assert [len(group.episodes) for group in groups] == [4, 4]


def test_with_all_episodes_kept_the_groups_differ_in_size() -> None:
    sampler = Adaptive(group_size=4, round_size=4, rounds=3, keep_all=True)
    groups, _ = sampled(sampler, lambda t, n: float(t == 0 and n % 2))
    assert [len(group.episodes) for group in groups] == [4, 12]


def test_failed_episodes_are_neither_success_nor_failure() -> None:
    sampler = Adaptive(group_size=4, round_size=4, rounds=2)
    (first, second), _ = sampled(sampler, lambda t, n: None if t or n < 4 else float(n % 2))
    assert kept(first) == [4, 5, 6, 7]
    assert [each.status for each in second.episodes] == [Status.FAILED] * 4


def test_one_round_is_independent_sampling() -> None:
    one, played = sampled(Adaptive(group_size=4, round_size=4, rounds=1), lambda t, n: n / 3)
    other, independent = sampled(Independent(group_size=4), lambda t, n: n / 3)
    assert played.rounds == independent.rounds
    assert [kept(group) for group in one] == [kept(group) for group in other]


def test_the_kept_episodes_are_drawn_uniformly() -> None:
    counts = [0] * 16
    for seed in range(300):
        sampler = Adaptive(group_size=4, round_size=8, rounds=2)
        for group in sampler.sample(
            Listed(), Arcade(lambda t, n: float(n > 13)), step=1, seed=seed
        ):
            for n in kept(group):
                counts[n] += 1
    assert counts[14] == counts[15] == 600
    # In 600 draws of two of fourteen each is expected 85.7 times, standard deviation 8.6.
    assert all(abs(count - 600 * 2 / 14) < 45 for count in counts[:14])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rounds": 0}, "at least 1"),
        ({"group_size": 9, "round_size": 4, "rounds": 2}, "fewer than the 9 of a group"),
        ({"until": "bored"}, "balanced, success"),
        ({"group_size": 1}, "a balanced group has a success and a failure"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Adaptive(**settings)
