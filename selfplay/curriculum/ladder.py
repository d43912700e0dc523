"""The ladder: failed tasks get easier variants, and are tried again once these are solved."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.types import Group, Status, Task, from_json, to_json


@dataclass(kw_only=True)
class Rung:
    """A task with its position on the ladder."""

    task: Task
    """Task to play."""
    parent: str = ""
    """Id of the task that this one is a variant of; "" for a root."""
    depth: int = 0
    """Number of steps below the root: a variant is one step below its task."""
    state: Literal["open", "waiting", "solved"] = "open"
    """open: the task is played. waiting: it failed, and waits for its variants. solved: it is
    played if a step has too few open tasks."""
    tries: int = 0
    """Number of variants that were requested since the task last failed."""
    climbed: list[str] = field(default_factory=list)
    """Ids of the variants that were solved since the task last failed, each once."""


class Ladder:
    """Recursive difficulty (LADDER, 2503.00735) over tasks whose answers can be verified.

    Every step plays open tasks and requests variants of waiting ones. A task less than `depth`
    steps below its root waits if its solve rate is at most `failed`, and a proposer is asked for
    easier variants of it; valid variants are open. The task itself is open again when `climb`
    variants are solved, or when no more can be requested and none is unsolved. A task is solved
    once its solve rate in a step reaches `solved`. Solved tasks fill a step that has too few open
    ones; one whose solve rate is then below `solved` is open or waits again.
    """

    def __init__(
        self,
        *,
        roots: Sequence[Task],
        batch: int,
        proposals: int,
        variants: int = 4,
        climb: int = 2,
        depth: int = 3,
        failed: float = 0.0,
        solved: float = 0.75,
        capacity: int = 16_384,
        seed: int = 0,
    ) -> None:
        """Args:
        roots: Tasks that should be solved in the end.
        batch: Tasks to solve per step.
        proposals: Variants requested per step, of all waiting tasks together.
        variants: Variants requested of one task each time that it fails.
        climb: Solved variants after which the task is tried again.
        depth: Largest number of steps below a root.
        failed: Solve rate up to which a task has failed.
        solved: Solve rate from which on a task is solved.
        capacity: Variants on the ladder; while it is full, no more are requested.
        seed: Seed of all draws.
        """
        if not roots:
            raise ConfigError("curriculum: no roots; set at least one task")
        if min(batch, proposals, variants, climb, capacity) < 1 or depth < 0:
            raise ConfigError(
                "curriculum: batch, proposals, variants, climb and capacity are at least 1, depth "
                "at least 0"
            )
        if not 0 <= failed < solved <= 1:
            raise ConfigError(f"curriculum: 0 <= failed < solved <= 1, not {failed} and {solved}")
        self.batch, self.proposals, self.variants, self.climb = batch, proposals, variants, climb
        self.depth, self.failed, self.solved = depth, failed, solved
        self.capacity, self.seed = capacity, seed
        self.rungs = {task.id: Rung(task=task) for task in roots}
        self.roots = list(self.rungs)

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return tasks to solve and variants to propose."""
        rng = Random(derive(self.seed, "ladder", step, attempt))
        opened = self._in_state("open")
        rungs = rng.sample(opened, min(self.batch, len(opened)))
        done = self._in_state("solved")
        rungs += rng.sample(done, min(self.batch - len(rungs), len(done)))
        asked = self._asked(f"{step}-{attempt}", rng)
        return [rung.task for rung in rungs] + asked

    def _asked(self, name: str, rng: Random) -> list[Task]:
        """Return variants to propose, one of each waiting task before a second of any."""
        room = min(self.proposals, self._room())
        waiting = [rung for rung in self._in_state("waiting") if rung.tries < self.variants]
        rng.shuffle(waiting)
        tasks: list[Task] = []
        while len(tasks) < room and waiting:
            for rung in waiting[: room - len(tasks)]:
                rung.tries += 1
                tasks.append(
                    Task(
                        id=f"variant-{name}-{len(tasks)}",
                        type=rung.task.type,
                        payload={
                            "mode": "propose",
                            "given": dict(rung.task.payload),
                            "parent": rung.task.id,
                        },
                    )
                )
            waiting = [rung for rung in waiting if rung.tries < self.variants]
        return tasks

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Add variants to the ladder, and change the states of the tasks that were played."""
        tries, solved = Counter[str](), Counter[str]()
        for episode in (episode for group in groups for episode in group.episodes):
            if episode.status is Status.FAILED:
                continue
            for task in episode.created:
                self._add(task, str(episode.task.payload.get("parent", "")))
            for task in episode.created or (episode.task,):
                tries[task.id] += int(episode.metrics.get("attempts", 0))
                solved[task.id] += int(episode.metrics.get("solved", 0))
        for name, count in tries.items():
            if name in self.rungs and count:
                self._judge(self.rungs[name], solved[name] / count)
        below = {rung.parent for rung in self.rungs.values() if rung.state != "solved"}
        for rung in self._in_state("waiting"):
            asking = rung.tries < self.variants and self._room()
            if len(rung.climbed) >= self.climb or not (asking or rung.task.id in below):
                rung.state = "open"

    def _add(self, task: Task, parent: str) -> None:
        above = self.rungs.get(parent)
        if above and task.id not in self.rungs:
            self.rungs[task.id] = Rung(task=task, parent=parent, depth=above.depth + 1)

    def _judge(self, rung: Rung, rate: float) -> None:
        if rate >= self.solved:
            above = self.rungs.get(rung.parent)
            if rung.state != "solved" and above and rung.task.id not in above.climbed:
                above.climbed.append(rung.task.id)
            rung.state = "solved"
        elif rate <= self.failed and rung.depth < self.depth and rung.state != "waiting":
            rung.state, rung.tries, rung.climbed = "waiting", 0, []
        elif rung.state == "solved":
            rung.state = "open"

    def _room(self) -> int:
        """Return the number of variants that can still be added."""
        return self.capacity - (len(self.rungs) - len(self.roots))

    def _in_state(self, state: str) -> list[Rung]:
        return [rung for rung in self.rungs.values() if rung.state == state]

    def ready(self) -> bool:
        return True

    def metrics(self) -> dict[str, float]:
        """Return numbers of tasks by state and of variants, and the fraction of roots that are
        solved."""
        states = ("open", "waiting", "solved")
        counts = {state: float(len(self._in_state(state))) for state in states}
        roots = [self.rungs[name].state == "solved" for name in self.roots]
        deepest = max(rung.depth for rung in self.rungs.values())
        variants = len(self.rungs) - len(self.roots)
        return {
            **counts,
            "variants": variants,
            "deepest": deepest,
            "roots_solved": sum(roots) / len(roots),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all rungs."""
        return {"rungs": [to_json(rung) for rung in self.rungs.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ConfigError if it lacks one of the roots."""
        rungs = {rung.task.id: rung for rung in (from_json(Rung, each) for each in state["rungs"])}
        for name in self.roots:
            if name not in rungs:
                raise ConfigError(
                    f"curriculum.roots: the checkpoint has no task {name[:60]!r}; resume with the "
                    "same roots"
                )
        self.rungs = rungs
