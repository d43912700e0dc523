"""The self-proposed curriculum: tasks to propose, and earlier proposals to solve again."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from selfplay.curriculum.task_buffer import BufferEntry, TaskBuffer
from selfplay.errors import ConfigError, NothingToLearn
from selfplay.rng import derive
from selfplay.types import Group, Status, Task


@dataclass(frozen=True, kw_only=True)
class ProposalCounts:
    """Numbers of the proposals that one step asked for. `ProposalCurriculum` makes and reads it."""

    played: Counter[str] = field(default_factory=Counter)
    """Number of tasks to propose that were played, by type."""
    valid: Counter[str] = field(default_factory=Counter)
    """Number of valid proposals of these tasks, by type."""


class ProposalCurriculum:
    """Requests proposals of every type and fills the solvers' batch from the buffer (2505.03335).

    For each type, `proposals` tasks ask a proposer for a new task and show it `references` entries
    of the buffer. Solvers attempt new proposals, and `solver_batch` minus n older tasks of the
    buffer, where n is `proposals` times the fraction of valid proposals in the last step that asked
    for some. The fraction counts all rounds of that step (refills), and all steps over which a
    mixture plays its tasks. Nothing is learned until every type has `seed_size` entries (4
    batches in the paper).

    With phases, steps only propose for a while and then only solve; if the buffer has too few tasks
    for the solvers, proposals fill their batch. In a mixture, tasks have the phase of the step in
    which the whole batch was drawn.
    """

    def __init__(
        self,
        *,
        buffer: TaskBuffer,
        seeds: Sequence[Task],
        types: Sequence[str],
        proposals: int,
        solver_batch: int,
        references: int = 6,
        seed_size: int = 0,
        seeding_steps: int = 50,
        given: Mapping[str, Sequence[str]] | None = None,
        replay: bool = True,
        band: tuple[float, float] | None = None,
        reference_band: tuple[float, float] | None = None,
        propose_steps: int = 0,
        solve_steps: int = 0,
        seed: int = 0,
    ) -> None:
        """Args:
        buffer: Buffer of valid proposals.
        seeds: Initial entries of the buffer.
        types: Task types to propose and solve.
        proposals: Proposals per type and step.
        solver_batch: Tasks per type and step that solvers attempt, new and old together.
        references: Entries shown to a proposer as examples to differ from (K).
        seed_size: Entries that every type must have before learning starts.
        seeding_steps: Steps after which an unfinished seeding stops the run.
        given: Task type to other types: a proposal of this type starts from an entry of one of
            the other types.
        replay: False draws nothing from the buffer (for the naive baseline).
        band: Range of solve rates of entries to solve again; None for all entries.
        reference_band: Range of solve rates of the entries shown to proposers; None for all
            entries. If fewer than `references` entries lie in it, the draw is from all entries.
        propose_steps: Steps of a phase that only proposes; 0 for no phases.
        solve_steps: Steps of a phase that only solves; 0 for no phases.
        seed: Seed of all draws.
        """
        if not types:
            raise ConfigError("curriculum: no task types")
        if not seeds and (references or given):
            raise ConfigError(
                "curriculum: no seed tasks to show to proposers; set curriculum.seeds"
            )
        self.buffer, self.types = buffer, list(types)
        self.proposals, self.solver_batch, self.references = proposals, solver_batch, references
        self.seed_size, self.seeding_steps, self.replay = seed_size, seeding_steps, replay
        self.band, self.reference_band = band, reference_band
        self.propose_steps, self.solve_steps = propose_steps, solve_steps
        self.given = {kind: list(sources) for kind, sources in (given or {}).items()}
        self.seed = seed
        self._step: int | None = None
        self._added = self._duplicates = 0
        self._asked: dict[int, ProposalCounts] = {}
        """Counts of the last two steps that asked for proposals, the newest last."""
        for task in seeds:
            buffer.add(task, step=-1)
        self._check()

    def _check(self) -> None:
        """Raise ConfigError for settings that contradict each other or are out of range."""
        if min(self.proposals, self.solver_batch, self.references, self.seed_size) < 0:
            raise ConfigError(
                "curriculum: proposals, solver_batch, references and seed_size are not negative"
            )
        for name, band in {"band": self.band, "reference_band": self.reference_band}.items():
            if band and not 0 <= band[0] <= band[1] <= 1:
                raise ConfigError(f"curriculum.{name}: {band} is not within [0, 1]")
        if min(self.propose_steps, self.solve_steps) < 0 or (
            bool(self.propose_steps) != bool(self.solve_steps)
        ):
            raise ConfigError(
                "curriculum: propose_steps and solve_steps are both at least 1, or both 0"
            )
        if self.propose_steps and not self.replay:
            raise ConfigError("curriculum: a phase that only solves needs replay: true")
        if self.seed_size > self.buffer.capacity:
            raise ConfigError(
                f"curriculum: seed_size {self.seed_size} is more than the task buffer's capacity "
                f"of {self.buffer.capacity}"
            )
        for kind, sources in self.given.items():
            if kind in self.types and not any(map(self.buffer.count, sources)):
                raise ConfigError(
                    f"curriculum.given.{kind}: there is no seed task of the types {sources}"
                )

    @property
    def gathering_rounds(self) -> int:
        """Number of rounds after which `observe` stops an unfinished seeding."""
        return self.seeding_steps

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        """Return proposals to make and tasks to solve, type by type."""
        rng = Random(derive(self.seed, "curriculum", step, attempt))
        phase = self.phase(step)
        tasks = []
        for kind in self.types:
            if phase == "solve":
                solve = self._again(kind, self.solver_batch, rng)
                tasks += self._ask(kind, self.solver_batch - len(solve), step, attempt, rng)
                tasks += solve
                continue
            tasks += self._ask(kind, self.proposals, step, attempt, rng)
            if phase == "both" and self.replay:
                count = max(0, self.solver_batch - round(self._valid(kind, step)))
                tasks += self._again(kind, count, rng)
        return tasks

    def _valid(self, kind: str, step: int) -> float:
        """Return the expected number of valid proposals: their rate in the last step that asked."""
        asked = next((self._asked[each] for each in reversed(self._asked) if each != step), None)
        if asked is None:
            return 0.0
        return self.proposals * asked.valid[kind] / max(asked.played[kind], 1)

    def phase(self, step: int) -> Literal["both", "propose", "solve"]:
        """Return the kind of a step's tasks. The first step is 1; gathering comes before it."""
        if not self.ready():
            return "propose"
        if not self.propose_steps:
            return "both"
        index = (step - 1) % (self.propose_steps + self.solve_steps)
        return "propose" if index < self.propose_steps else "solve"

    def _again(self, kind: str, count: int, rng: Random) -> list[Task]:
        """Return tasks of the buffer to solve again."""
        drawn = self.buffer.sample([kind], count, rng, band=self.band)
        return [entry.task for entry in drawn]

    def _ask(self, kind: str, count: int, step: int, attempt: int, rng: Random) -> list[Task]:
        """Return tasks that ask for proposals."""
        names = (f"{kind}-propose-{step}-{attempt}-{number}" for number in range(count))
        return [self._proposal(kind, name, step, rng) for name in names]

    def _proposal(self, kind: str, name: str, step: int, rng: Random) -> Task:
        sources = self.given.get(kind)
        shown = [] if sources else self._references(kind, rng)
        given = self.buffer.sample(sources, 1, rng) if sources else []
        return Task(
            id=name,
            type=kind,
            payload={
                "mode": "propose",
                "step": step,
                "references": [dict(entry.task.payload) for entry in shown],
                "given": dict(given[0].task.payload) if given else None,
                "parents": [entry.number for entry in [*shown, *given]],
                "known": self.buffer.size,
            },
        )

    def _references(self, kind: str, rng: Random) -> list[BufferEntry]:
        """Return the entries that a proposer is shown as examples to differ from."""
        drawn = self.buffer.sample([kind], self.references, rng, band=self.reference_band)
        if self.reference_band and len(drawn) < self.references:
            return self.buffer.sample([kind], self.references, rng)
        return drawn

    def observe(self, groups: Sequence[Group], step: int) -> None:
        """Keep the valid proposals, and count the attempts at every task. Called once a round."""
        if step != self._step:
            self._step = step
            self._added = self._duplicates = 0
        for group in groups:
            counts = self._counts(group, step)
            for episode in group.episodes:
                if episode.status is Status.FAILED:
                    continue
                for task in episode.created:
                    counts.valid[task.type] += 1
                    author = episode.turns[0]
                    added = self.buffer.add(
                        task,
                        step=step,
                        author=f"{author.policy}@{author.version}",
                        parents=episode.task.payload.get("parents", ()),
                    )
                    self._added += added
                    self._duplicates += not added
                attempts = int(episode.metrics.get("attempts", 0))
                solved = int(episode.metrics.get("solved", 0))
                for task in episode.created or (episode.task,):
                    self.buffer.record(task, attempts=attempts, solved=solved)
        if not self.ready() and step <= -self.seeding_steps:
            raise NothingToLearn(
                f"seeding: after {self.seeding_steps} rounds the buffer holds "
                f"{ {kind: self.buffer.count(kind) for kind in self.types} }, not {self.seed_size} "
                "of each type; the policy proposes too few valid tasks: set more steps for the "
                "warm start, or a smaller curriculum.seed_size"
            )

    def _counts(self, group: Group, step: int) -> ProposalCounts:
        """Count a group that proposes; return the counts of the step that asked for it."""
        task = group.episodes[0].task
        if task.payload.get("mode") != "propose":
            return ProposalCounts()
        asked = int(task.payload.get("step", step))
        counts = self._asked.setdefault(asked, ProposalCounts())
        counts.played[task.type] += len(group.episodes)
        while len(self._asked) > 2:
            del self._asked[next(iter(self._asked))]
        return counts

    def ready(self) -> bool:
        """Return True if every type has its seed entries."""
        return all(self.buffer.count(kind) >= self.seed_size for kind in self.types)

    def gathered(self) -> tuple[int, int]:
        """Return the number of seed entries that count so far, and the number that is needed."""
        found = sum(min(self.buffer.count(kind), self.seed_size) for kind in self.types)
        return found, self.seed_size * len(self.types)

    def metrics(self) -> dict[str, float]:
        """Return the numbers of entries by type, and of the last step's new and known proposals."""
        sizes = {f"buffer/{kind}": float(self.buffer.count(kind)) for kind in self.types}
        return {
            **sizes,
            "added": float(self._added),
            "same_step_duplicates": float(self._duplicates),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer, and the counts of the last steps' proposals."""
        asked = [[step, dict(each.played), dict(each.valid)] for step, each in self._asked.items()]
        return {"buffer": self.buffer.state_dict(), "asked": asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.buffer.load_state_dict(state["buffer"])
        self._asked = {
            int(step): ProposalCounts(played=Counter(played), valid=Counter(valid))
            for step, played, valid in state.get("asked", ())  # missing in older runs
        }
        self._step = None
