"""Levels of difficulty that follow the solve rate, one per generator of tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from selfplay.errors import ConfigError, nearest
from selfplay.types import Group, Status, Task

LEVEL = "level"
"""Key of a task's payload with the level at which the task was drawn."""


@dataclass(frozen=True, kw_only=True)
class LevelDraw:
    """Request for new tasks. `LevelCurriculum` makes it; a `LevelSource` reads it."""

    generator: str
    """Name of the generator."""
    level: int
    """Level of difficulty, from 0."""
    count: int
    """Number of tasks."""
    number: int
    """Number of this generator's earlier requests; requests of different numbers are independent
    draws."""


class LevelSource(Protocol):
    """A source of tasks with levels of difficulty."""

    def levels(self, generators: Sequence[str]) -> list[int]:
        """Return the number of levels of each generator. Raises ConfigError for an unknown one."""
        ...

    def draw(self, requests: Sequence[LevelDraw]) -> list[list[Task]]:
        """Return the tasks of each request.

        The type of a task is its generator, and its payload has `level`. The same request has the
        same tasks at any time.
        """
        ...


class LevelCurriculum:
    """Draws new tasks of several generators, each at the level that its solve rate allows.

    After at least `window` attempts at a generator's present level, its level rises by one if the
    solve rate of these attempts is at least `up`, and falls by one if it is at most `down`. The
    count of attempts then begins again. Attempts at tasks of another level do not count.
    """

    def __init__(
        self,
        *,
        source: LevelSource,
        generators: Sequence[str] | Mapping[str, float],
        batch: int,
        up: float = 0.8,
        down: float = 0.2,
        window: int = 64,
        start: int = 0,
        fixed: bool = False,
        measures: Sequence[str] = ("solve_rate", "accuracy"),
    ) -> None:
        """Args:
        source: Makes the tasks.
        generators: Names of the generators, or their weights among the tasks by name.
        batch: Tasks per step.
        up: Solve rate from which on a level rises.
        down: Solve rate up to which a level falls.
        window: Attempts at a level after which it may change.
        start: First level; a generator with fewer levels begins at its highest one.
        fixed: True: all levels stay as they are.
        measures: Arena metrics that are a solve rate; the first one that an episode has is used.
        """
        weights = (
            dict(generators) if isinstance(generators, Mapping) else dict.fromkeys(generators, 1.0)
        )
        if not weights:
            raise ConfigError("curriculum.generators: empty; name at least one")
        for name, weight in weights.items():
            if not 0 < weight < math.inf:
                raise ConfigError(f"curriculum.generators.{name}: {weight} is not a weight above 0")
        if not 0 <= down < up <= 1:
            raise ConfigError(f"curriculum: 0 <= down < up <= 1, not {down} and {up}")
        if min(batch, window) < 1 or start < 0:
            raise ConfigError("curriculum: batch and window are at least 1, start at least 0")
        if not measures:
            raise ConfigError("curriculum.measures: empty; name a metric of the arena")
        total = sum(weights.values())
        self.source, self.batch = source, batch
        self.shares = {name: weight / total for name, weight in weights.items()}
        self.up, self.down, self.window, self.fixed = up, down, window, fixed
        self.measures = tuple(measures)
        self.highest = {
            name: count - 1
            for name, count in zip(weights, source.levels(list(weights)), strict=True)
        }
        self.level = {name: min(start, most) for name, most in self.highest.items()}
        self._drawn = dict.fromkeys(weights, 0)
        self._requests = dict.fromkeys(weights, 0)
        self._attempts = dict.fromkeys(weights, 0)
        self._solved = dict.fromkeys(weights, 0.0)
        self._rate: dict[str, float] = {}

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return new tasks; in the long run each generator has its fraction of them."""
        order: list[str] = []
        for _ in range(self.batch):
            name = max(self.shares, key=self._shortfall)
            self._drawn[name] += 1
            order.append(name)
        requests = [self._request(name, order.count(name)) for name in dict.fromkeys(order)]
        found = dict(
            zip([each.generator for each in requests], self.source.draw(requests), strict=True)
        )
        for name, tasks in found.items():
            if not tasks:
                raise ConfigError(
                    f"curriculum.generators: {name} has no question for training at level "
                    f"{self.level[name]}; leave it out, or choose another level"
                )
        # A generator with few different questions repeats them.
        taken = dict.fromkeys(found, 0)
        batch: list[Task] = []
        for name in order:
            batch.append(found[name][taken[name] % len(found[name])])
            taken[name] += 1
        return batch

    def _request(self, name: str, count: int) -> LevelDraw:
        self._requests[name] += 1
        return LevelDraw(
            generator=name, level=self.level[name], count=count, number=self._requests[name] - 1
        )

    def _shortfall(self, name: str) -> float:
        """Return the number of tasks that a generator lacks of its fraction, including the next."""
        return self.shares[name] * (sum(self._drawn.values()) + 1) - self._drawn[name]

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Count the attempts, and change the levels."""
        for episode in (episode for group in groups for episode in group.episodes):
            task = episode.task
            name = task.type
            if episode.status is Status.FAILED or name not in self.level:
                continue
            if task.payload.get(LEVEL) != self.level[name]:
                continue  # drawn before the level changed
            attempts = max(1, int(episode.metrics.get("attempts", 1)))
            self._attempts[name] += attempts
            self._solved[name] += attempts * self._solve_rate(episode.status, episode.metrics)
        for name in self.level:
            if self._attempts[name] >= self.window:
                self._change(name)

    def _solve_rate(self, status: Status, metrics: Mapping[str, float]) -> float:
        for measure in self.measures:
            if measure in metrics:
                return metrics[measure]
        if status is Status.TRUNCATED:
            return 0.0
        raise ConfigError(
            f"curriculum.measures: an episode has none of {', '.join(self.measures)}; "
            f"{nearest(self.measures[0], metrics)}"
        )

    def _change(self, name: str) -> None:
        rate = self._solved[name] / self._attempts[name]
        self._rate[name], self._attempts[name], self._solved[name] = rate, 0, 0.0
        if self.fixed:
            return
        if rate >= self.up:
            self.level[name] = min(self.level[name] + 1, self.highest[name])
        elif rate <= self.down:
            self.level[name] = max(self.level[name] - 1, 0)

    def ready(self) -> bool:
        return True

    def metrics(self) -> dict[str, float]:
        """Return each generator's level and, once it is known, its last solve rate, and the mean
        level."""
        metrics = {f"{name}/level": float(level) for name, level in self.level.items()}
        metrics |= {f"{name}/solve_rate": rate for name, rate in self._rate.items()}
        return metrics | {"mean_level": sum(self.level.values()) / len(self.level)}

    def state_dict(self) -> dict[str, Any]:
        """Return the levels, the counts of attempts and the numbers of draws, by generator."""
        return {
            "level": dict(self.level),
            "drawn": dict(self._drawn),
            "requests": dict(self._requests),
            "attempts": dict(self._attempts),
            "solved": dict(self._solved),
            "rate": dict(self._rate),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ConfigError for other generators."""
        if set(state["level"]) != set(self.level):
            raise ConfigError(
                f"curriculum.generators: the checkpoint has {', '.join(sorted(state['level']))}; "
                "resume with the same ones"
            )
        for name, most in self.highest.items():
            self.level[name] = min(max(int(state["level"][name]), 0), most)
            self._drawn[name] = int(state["drawn"][name])
            self._requests[name] = int(state["requests"][name])
            self._attempts[name] = int(state["attempts"][name])
            self._solved[name] = float(state["solved"][name])
        self._rate = {name: float(rate) for name, rate in state["rate"].items()}
