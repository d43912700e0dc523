"""A curriculum that records everything and a rollout that can be blocked, for sampling ahead."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler import Sampler
from selfplay.sampler.independent import Independent
from selfplay.sampler.prefetch import Batches, OnDemandBatches, PrefetchedBatches, StepBatch
from selfplay.types import Episode, Group, Task
from tests.helpers.builders import episode, turn

STEPS = 6
LONG = 120.0
"""Seconds after which a test stops waiting and fails."""


class Growing:
    """A curriculum whose tasks depend on the number of groups that it has observed so far."""

    def __init__(self) -> None:
        self.observed: list[str] = []

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        return [Task(id=f"{step}-{attempt}-{len(self.observed)}-{number}") for number in range(2)]

    def observe(self, groups: Sequence[Group], step: int) -> None:
        self.observed += [f"{step}: {group.episodes[0].task.id}" for group in groups]

    def ready(self) -> bool:
        return True

    def metrics(self) -> dict[str, float]:
        return {"observed": float(len(self.observed))}

    def state_dict(self) -> dict[str, Any]:
        return {"observed": list(self.observed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.observed = list(state["observed"])


class Versioned(Protocol):
    """An object with the version of the weights."""

    version: int


class Player:
    """A rollout paid by the spec. It records the version at its start and then waits at `gate`."""

    def __init__(self) -> None:
        self.version = 0
        self.begun: list[int] = []
        self.gate: Callable[[int], None] = lambda step: None

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        step = int(specs[0].task.id.partition("-")[0])
        self.begun.append(self.version)
        self.gate(step)
        paid = [float((spec.seed + spec.member) % 3 > 0) for spec in specs]
        return [
            episode(turn("solver_0", reward), task=spec.task, seed=spec.seed)
            for spec, reward in zip(specs, paid, strict=True)
        ]


def synchronous(play: Player, sampler: Sampler | None = None) -> OnDemandBatches:
    sampler = sampler or Independent(group_size=2)
    return OnDemandBatches(curriculum=Growing(), sampler=sampler, rollout_fn=play, seed=lambda: 7)


@contextmanager
def ahead(play: Player, lag: int, **settings: Any) -> Iterator[PrefetchedBatches]:
    sampler = settings.pop("sampler", None)
    given = {"last": STEPS, "keeps": lambda step: True, "timeout": LONG, **settings}
    made = PrefetchedBatches(synchronous(play, sampler), max_staleness=lag, **given)
    try:
        yield made
    finally:
        made.close()


def learn(source: Batches, play: Versioned, steps: Sequence[int]) -> list[StepBatch]:
    found = []
    for step in steps:
        found.append(source.take(step))
        play.version += 1
        source.learned(step)
    return found


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.002)
