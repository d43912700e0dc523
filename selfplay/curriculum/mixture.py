"""A mixture of curricula, each with its own arena and a fraction of every step's tasks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfplay.author_code import check_members, saved_state
from selfplay.curriculum import Curriculum, reads_outcomes
from selfplay.errors import ConfigError, nearest
from selfplay.types import Group, Task, from_json, to_json


def routed(part: str, task: Task) -> Task:
    """Return a part's task for the mixture's arena; id and type get the part's name as prefix."""
    payload = {"arena": part, "task": to_json(task)}
    return Task(id=f"{part}/{task.id}", type=f"{part}/{task.type}", payload=payload)


def unrouted(task: Task) -> tuple[str, Task]:
    """Return the name of a task's part, and the part's own task.

    Raises ValueError for a task that `routed` did not make.
    """
    try:
        return str(task.payload["arena"]), from_json(Task, task.payload["task"])
    except KeyError as error:
        raise ValueError(f"task {task.id} names no arena of a mixture: no {error}") from error


@dataclass(frozen=True, kw_only=True)
class MixturePhase:
    """Consecutive steps with fractions of their own. `MixtureCurriculum` makes and reads it."""

    steps: int
    """Number of steps; the last phase goes on until the end of the run."""
    shares: Mapping[str, float]
    """Weight of each part among all tasks; a part that is not named is not played."""

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps is a whole number of at least 1, not {self.steps!r}")
        if not isinstance(self.shares, Mapping) or not self.shares:
            raise ValueError(f"shares holds a weight for each part by name, not {self.shares!r}")


def _phases(nodes: Sequence[Mapping[str, Any]]) -> list[MixturePhase]:
    """Convert phases of a config; raise ConfigError for an impossible one."""
    phases = []
    for number, node in enumerate(nodes):
        try:
            phases.append(MixturePhase(**node))
        except (TypeError, ValueError) as error:
            reason = str(error).replace("MixturePhase.__init__() ", "")
            raise ConfigError(f"curriculum.phases.{number}: {reason}") from error
    return phases


class MixtureCurriculum:
    """Takes tasks from its parts, so that in the long run each part has its fraction of the tasks.

    A part gives new tasks only when all of its earlier ones are used up, so that none is lost. The
    fractions count tasks, however many a part gives at once. While some parts still gather their
    first tasks, only those parts give tasks, also in the first steps of a later phase. Every part
    observes its own episodes, as if it were alone. With `phases`, the parts are played in order, or
    their fractions change, as for a study of what a policy forgets.
    """

    def __init__(
        self,
        *,
        parts: Mapping[str, Curriculum],
        batch: int,
        shares: Mapping[str, float] | None = None,
        phases: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Args:
        parts: Names of the mixture's arenas to their curricula.
        batch: Tasks per step, of all parts together.
        shares: Weight of each part among all tasks; only the proportions count.
        phases: Fields of `MixturePhase`, in order, in place of `shares`.
        """
        if not parts or batch < 1:
            raise ConfigError(
                "curriculum: a mixture needs at least one part, and batch must be at least 1"
            )
        if (shares is None) == (not phases):
            raise ConfigError("curriculum: a mixture needs shares or phases, and not both")
        for name, part in parts.items():
            check_members(part, "curriculum", f"curriculum.parts.{name}")
        self.parts, self.batch = dict(parts), batch
        if shares is not None:
            self.phases = [(1, self._fractions(shares, "curriculum.shares"))]
            for name in parts:
                if name not in shares:
                    raise ConfigError(f"curriculum.shares.{name}: missing; every part has a share")
        else:
            self.phases = [
                (phase.steps, self._fractions(phase.shares, f"curriculum.phases.{number}.shares"))
                for number, phase in enumerate(_phases(phases))
            ]
        self._phase = 0
        self._drawn = dict.fromkeys(self.parts, 0)
        self._waiting: dict[str, list[Task]] = {name: [] for name in self.parts}

    def _fractions(self, shares: Mapping[str, float], where: str) -> dict[str, float]:
        """Return the fraction of all tasks of each named part."""
        for name, share in shares.items():
            if name not in self.parts:
                raise ConfigError(f"{where}: no part {name!r}; {nearest(name, self.parts)}")
            if not isinstance(share, int | float) or not 0 < share < float("inf"):
                raise ConfigError(f"{where}.{name}: {share!r} is not a share above 0")
        total = sum(shares.values())
        return {name: shares[name] / total for name in self.parts if name in shares}

    @property
    def shares(self) -> Mapping[str, float]:
        """Fraction of all tasks of each part that is played now."""
        return self.phases[self._phase][1]

    @property
    def reads_outcomes(self) -> bool:
        """True if any part reads outcomes."""
        return any(map(reads_outcomes, self.parts.values()))

    def _enter(self, step: int) -> None:
        """Enter the phase of a step, counted from 1. Each phase counts its own tasks."""
        left, phase = step, 0
        while phase < len(self.phases) - 1 and left > self.phases[phase][0]:
            left -= self.phases[phase][0]
            phase += 1
        if phase != self._phase:
            self._phase, self._drawn = phase, dict.fromkeys(self.parts, 0)

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return the next tasks, each from the part that has fallen short of its fraction the
        most."""
        self._enter(step)
        gathering = [name for name in self.shares if not self.parts[name].ready()]
        if gathering:
            return [
                routed(name, task)
                for name in gathering
                for task in self.parts[name].tasks(step, attempt)
            ]
        tasks: list[Task] = []
        asked = Counter[str]()
        dry: set[str] = set()
        while len(tasks) < self.batch and dry < set(self.shares):
            name = max(set(self.shares) - dry, key=self._shortfall)
            if not self._waiting[name]:
                # Each request in a step has its own attempt number, so that no tasks come twice.
                again = attempt * self.batch + asked[name]
                self._waiting[name] = self.parts[name].tasks(step, again)
                asked[name] += 1
            if self._waiting[name]:
                task = self._waiting[name].pop(0)
                refreshed = getattr(self.parts[name], "refreshed", None)  # of `ScheduledTasks`
                tasks.append(routed(name, refreshed(task, step) if refreshed else task))
                self._drawn[name] += 1
            else:
                dry.add(name)
        return tasks

    def _shortfall(self, name: str) -> tuple[float, str]:
        """Return the number of tasks that a part lacks of its fraction, with the next task
        counted."""
        total = sum(self._drawn.values()) + 1
        return self.shares[name] * total - self._drawn[name], name

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Pass each group to the part that its task belongs to."""
        own: dict[str, list[Group]] = {name: [] for name in self.parts}
        for group in groups:
            part, task = unrouted(group.episodes[0].task)
            episodes = tuple(
                replace(e, task=task, created=tuple(unrouted(each)[1] for each in e.created))
                for e in group.episodes
            )
            own[part].append(replace(group, episodes=episodes))
        for name, part_groups in own.items():
            self.parts[name].observe(part_groups, step)

    def ready(self) -> bool:
        """Return True if all parts that are played now are ready."""
        return all(self.parts[name].ready() for name in self.shares)

    def metrics(self) -> dict[str, float]:
        """Return the parts' metrics under their names, and the fraction of this phase's tasks drawn
        from each."""
        total = sum(self._drawn.values())
        metrics = {f"{name}/drawn": drawn / max(total, 1) for name, drawn in self._drawn.items()}
        for name, part in self.parts.items():
            metrics |= {f"{name}/{key}": value for key, value in part.metrics().items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the parts' states, the phase, the numbers of drawn tasks and the tasks that
        wait."""
        return {
            "phase": self._phase,
            "parts": {
                name: saved_state(part, f"curriculum.parts.{name}")
                for name, part in self.parts.items()
            },
            "drawn": dict(self._drawn),
            "waiting": {name: [to_json(t) for t in own] for name, own in self._waiting.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._phase = min(int(state.get("phase", 0)), len(self.phases) - 1)
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
            self._drawn[name] = int(state["drawn"][name])
            self._waiting[name] = [from_json(Task, task) for task in state["waiting"][name]]
