"""A mixture of curricula, each with an arena of its own and a share of every step's tasks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from selfplay.curriculum import Curriculum
from selfplay.errors import ConfigError, nearest
from selfplay.types import Group, Task, from_json, to_json


def routed(part: str, task: Task) -> Task:
    """A part's task as the mixture's arena takes it. Id and type are paths below the part."""
    payload = {"arena": part, "task": to_json(task)}
    return Task(id=f"{part}/{task.id}", type=f"{part}/{task.type}", payload=payload)


def unrouted(task: Task) -> tuple[str, Task]:
    """The part that a task is for, and its own task; raises ValueError if it is no such task."""
    try:
        return str(task.payload["arena"]), from_json(Task, task.payload["task"])
    except KeyError as error:
        raise ValueError(f"task {task.id} names no arena of a mixture: no {error}") from error


class MixtureCurriculum:
    """Asks each part for tasks in turn, so that in the long run it has its share of them.

    A part is asked when its last answer is used up, and none of its tasks is lost: the share is of
    tasks, however many a part gives at once. While parts still gather, only those are asked. Every
    part is told of its own episodes, as if it were alone.
    """

    def __init__(
        self, *, parts: Mapping[str, Curriculum], shares: Mapping[str, float], batch: int
    ) -> None:
        """Args:
        parts: Names of the mixture's arenas to their curricula.
        shares: Of all tasks, by part; only their proportions count.
        batch: Tasks per step, of all parts together.
        """
        if not parts or batch < 1:
            raise ConfigError("curriculum: a mixture has a part, and a batch of at least 1")
        for name, share in shares.items():
            if name not in parts:
                raise ConfigError(f"curriculum.shares: no part {name!r}; {nearest(name, parts)}")
            if not 0 < share < float("inf"):
                raise ConfigError(f"curriculum.shares.{name}: {share} is no share above 0")
        for name in parts:
            if name not in shares:
                raise ConfigError(f"curriculum.shares.{name}: missing; every part has a share")
        self.parts, self.batch = dict(parts), batch
        total = sum(shares.values())
        self.shares = {name: shares[name] / total for name in self.parts}
        self._drawn = dict.fromkeys(self.parts, 0)
        self._waiting: dict[str, list[Task]] = {name: [] for name in self.parts}

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """The next tasks, each of the part that is furthest behind its share."""
        gathering = [name for name, part in self.parts.items() if not part.ready()]
        if gathering:
            return [
                routed(name, task)
                for name in gathering
                for task in self.parts[name].tasks(step, attempt)
            ]
        found: list[Task] = []
        asked = Counter[str]()
        dry: set[str] = set()
        while len(found) < self.batch and dry < set(self.parts):
            name = max(set(self.parts) - dry, key=self._behind)
            if not self._waiting[name]:
                # Each refill of a step asks otherwise, so that no answer comes twice.
                again = attempt * self.batch + asked[name]
                self._waiting[name] = self.parts[name].tasks(step, again)
                asked[name] += 1
            if self._waiting[name]:
                found.append(routed(name, self._waiting[name].pop(0)))
                self._drawn[name] += 1
            else:
                dry.add(name)
        return found

    def _behind(self, name: str) -> tuple[float, str]:
        """How far a part is behind its share of the tasks, the next one included."""
        total = sum(self._drawn.values()) + 1
        return self.shares[name] * total - self._drawn[name], name

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Tell every part of its own groups."""
        own: dict[str, list[Group]] = {name: [] for name in self.parts}
        for group in groups:
            part, task = unrouted(group.episodes[0].task)
            episodes = tuple(replace(episode, task=task) for episode in group.episodes)
            own[part].append(replace(group, episodes=episodes))
        for name, part_groups in own.items():
            self.parts[name].observe(part_groups, step)

    def ready(self) -> bool:
        """Whether all parts are."""
        return all(part.ready() for part in self.parts.values())

    def metrics(self) -> dict[str, float]:
        """The parts' figures under their names, and the share of tasks that each has had."""
        total = sum(self._drawn.values())
        figures = {f"{name}/drawn": drawn / max(total, 1) for name, drawn in self._drawn.items()}
        for name, part in self.parts.items():
            figures |= {f"{name}/{key}": value for key, value in part.metrics().items()}
        return figures

    def state_dict(self) -> dict[str, Any]:
        """The parts' states, what they have had and what waits."""
        return {
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "drawn": dict(self._drawn),
            "waiting": {name: [to_json(t) for t in kept] for name, kept in self._waiting.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
            self._drawn[name] = int(state["drawn"][name])
            self._waiting[name] = [from_json(Task, task) for task in state["waiting"][name]]
