"""Tests of the calls of a custom sampler: an error is one line that names the class."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from selfplay.curriculum.fixed import FixedTasks
from selfplay.errors import ConfigError
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler.checked_calls import groups_of, metrics_of, played_of
from selfplay.sampler.independent import Independent
from selfplay.sampler.prefetch import OnDemandBatches
from selfplay.types import Episode, Group, Task
from tests.helpers.builders import episode, turn


def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
    return [episode(turn("player_0", 1.0)) for _ in specs]


class Mine(Independent):
    """A sampler that plays as `Independent` does; arguments replace its results."""

    def __init__(
        self,
        *,
        sample: Callable[[Any], Any] = lambda groups: groups,
        played: Any = None,
        metrics: Any = None,
    ) -> None:
        super().__init__()
        self.make, self.of_played, self.of_metrics = sample, played, metrics

    def sample(self, *args: Any, **settings: Any) -> list[Group]:
        made: list[Group] = self.make(super().sample(*args, **settings))
        return made

    def played(self) -> Any:
        return super().played() if self.of_played is None else self.of_played

    def metrics(self) -> Any:
        return {} if self.of_metrics is None else self.of_metrics


def asked(sampler: Any, rollout_fn: Callable[..., list[Episode]] = play) -> list[Group]:
    return groups_of(sampler, FixedTasks(tasks=[Task(id="a")], batch=1), rollout_fn, step=1, seed=0)


def test_groups_are_passed_on() -> None:
    sampler = Independent(group_size=2)
    groups = asked(sampler)
    assert [len(group.episodes) for group in groups] == [2] and played_of(sampler, groups) == groups
    assert asked(Mine(sample=tuple)) == asked(Mine())


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (lambda groups: None, r"^sampler: Mine\.sample returned NoneType, not a list of Group"),
        (lambda groups: "ab", r"^sampler: Mine\.sample returned str, not a list of Group"),
        (
            lambda groups: [groups[0].episodes],
            r"^sampler: Mine\.sample returned a list with tuple, not of Group",
        ),
        (
            lambda groups: [*groups, Group(id="none", episodes=())],
            r"^sampler: Mine\.sample returned the group 'none' without episodes; leave it out",
        ),
        (
            lambda groups: 1 / 0,
            r"^sampler: Mine\.sample raised ZeroDivisionError: .*test_checked_calls\.py, line \d+",
        ),
    ],
)
def test_a_fault_of_sample_is_one_line(sample: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asked(Mine(sample=sample))


def test_played_and_metrics_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"^sampler: Mine\.played returned int, not a list of"):
        played_of(Mine(played=3), [])
    with pytest.raises(ConfigError, match=r"^sampler: Mine\.metrics gave 'size' the value 'big'"):
        metrics_of(Mine(metrics={"size": "big"}))
    assert metrics_of(Mine(metrics={"size": np.float32(2)})) == {"size": 2.0}


def test_a_group_that_played_lacks_is_refused() -> None:
    forgetful = Mine(played=[])
    groups = asked(forgetful)
    line = r"^sampler: Mine\.played lacks 1 of 1 groups that sample returned, such as '1\.0\.0'"
    with pytest.raises(ConfigError, match=line):
        played_of(forgetful, groups)
    assert played_of(forgetful, []) == []
    more = [*groups, Group(id="dropped", episodes=groups[0].episodes)]
    assert played_of(Mine(played=more), groups) == more


class Unfinished:
    """A sampler that has `sample` alone."""

    def sample(self, *args: Any, **settings: Any) -> list[Group]:
        return []


def test_a_method_that_is_missing_is_named() -> None:
    sampler: Any = Unfinished()
    with pytest.raises(ConfigError, match=r"^sampler: Unfinished\.played raised AttributeError"):
        played_of(sampler, [])


@pytest.mark.parametrize("sampler", [Mine(), Independent()])
def test_an_error_of_the_rollout_stays_as_it_is(sampler: Any) -> None:
    mine = RuntimeError("engine")

    def fail(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        raise mine

    with pytest.raises(RuntimeError) as caught:
        asked(sampler, fail)
    assert caught.value is mine


def test_a_sampler_may_catch_an_error_of_the_rollout() -> None:
    class Patient(Independent):
        """A sampler that plays again after an error."""

        def sample(self, *args: Any, **settings: Any) -> list[Group]:
            try:
                return super().sample(*args, **settings)
            except RuntimeError:
                return super().sample(*args, **settings)

    calls = list[int]()

    def fail_once(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        calls.append(len(specs))
        if len(calls) == 1:
            raise RuntimeError("once")
        return play(specs)

    assert len(asked(Patient(), fail_once)) == 1


@pytest.mark.parametrize(
    "sampler",
    [
        Mine(sample=lambda groups: None),
        Mine(played=3),
        Mine(played=[]),
        Mine(metrics={"x": "big"}),
    ],
)
def test_the_batches_of_training_are_checked(sampler: Any) -> None:
    batches = OnDemandBatches(
        curriculum=FixedTasks(tasks=[Task(id="a")], batch=1),
        sampler=sampler,
        rollout_fn=play,
        seed=lambda: 0,
    )
    with pytest.raises(ConfigError, match=r"^sampler: Mine\."):
        batches.take(1)
