"""Tests of the defaults of samplers."""

from typing import Any

import pytest

from selfplay import Curriculum, Group
from selfplay.credit.missing_signals import unmeasured, zero_sum
from selfplay.curriculum.fixed import FixedTasks
from selfplay.rollout.rollout import RolloutFn
from selfplay.sampler.adaptive import Adaptive
from selfplay.sampler.base import GroupSampler
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.independent import Independent
from selfplay.sampler.prefetch import overlap_problem
from selfplay.sampler.resample import Resample
from selfplay.sampler.tree import Branch, Tree
from selfplay.types import Task
from tests.helpers.builders import episode, group, single_turn_group, turn

CURRICULUM = FixedTasks(tasks=[Task(id="a")], batch=1)
OPPOSED = [group(episode(turn("player_0", 1.0), turn("player_1", -1.0)))]


class Last(GroupSampler):
    """A sampler without its own constructor that returns the last of the groups that it plays."""

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        self._played = single_turn_group(0.0, step)
        return list(self._played[-1:])


def test_a_sampler_needs_only_sample() -> None:
    sampler = Last()
    assert sampler.played() == [] and sampler.metrics() == {}
    for step in (1, 2):
        sampler.sample(CURRICULUM, lambda specs: [], step=step, seed=0)
        assert sampler.played() == single_turn_group(0.0, step)
    assert Last().played() == []
    assert not (sampler.tree or sampler.refills or sampler.drops_groups)
    assert overlap_problem(CURRICULUM, sampler) == ""
    assert not list(zero_sum(sampler, OPPOSED))
    assert not list(unmeasured({"sampler": sampler}, OPPOSED))


def test_the_attributes_of_a_sampler_are_read() -> None:
    class Judging(Last):
        judges_success = True
        metrics_read = {"penalty": "length"}

    (line,) = zero_sum(Judging(), OPPOSED)
    assert line.startswith("sampler Judging: the rewards of the agents add up to 0")
    (line,) = unmeasured({"sampler": Judging()}, OPPOSED)
    assert line.startswith("sampler.penalty: none of 1 finished episodes has a metric 'length'")


@pytest.mark.parametrize("kind", [Adaptive, Branch, Dynamic, Independent, Resample, Tree])
def test_the_samplers_of_the_library_derive_from_the_base_class(kind: type[Any]) -> None:
    assert issubclass(kind, GroupSampler)
    assert kind().played() == [] and {"played"}.isdisjoint(vars(kind))
