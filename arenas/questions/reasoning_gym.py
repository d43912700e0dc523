"""Questions and verifiers of the package `reasoning_gym` (2505.24760), for arenas of questions.

The package has about a hundred generators of questions with levels of difficulty, each with its own
verifier. Both run in the sandbox, because some verifiers evaluate the answer as Python. A task is
plain data: its payload has the question, the answer if there is one, the level, and under `gym`
what the verifier needs. So an episode is replayed without its generator.
"""

import ast
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from arenas.questions import _reasoning_program
from arenas.questions.arena import question_task
from arenas.splits import Split
from selfplay.curriculum.levels import LEVEL, LevelDraw
from selfplay.errors import ConfigError, nearest, require_package
from selfplay.rng import derive
from selfplay.sandbox import Call, Executor, Outcome
from selfplay.types import Task, well_formed

PACKAGE, DISTRIBUTION = "reasoning_gym", "reasoning-gym"
PROGRAM = Path(_reasoning_program.__file__).read_text(encoding="utf-8")
BLOCK = 8192
"""Number of seeds that belong to one draw. Blocks of even number train, all others are held out."""
BLOCKS = 2**17
"""Number of blocks of each split; all seeds are below 2^31."""
MOST = 500
"""Largest number of questions in one draw."""
DRAWN = ("name", "level", "settings", "seed", "size", "count", "held_out")
"""Parameters of `_reasoning_program.draw`, in their order."""


class ReasoningGym:
    """Service that makes questions and scores answers, each in isolated processes of its own.

    The config group `services` makes it; `ReasoningTasks`, `tasks` and `ReasoningVerifier` use it.
    The processes start when they are needed: two for questions and two for answers, per worker.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        cpu_seconds: float = 120.0,
        answer_seconds: float = 5.0,
        memory_mb: int = 2048,
        isolation: Literal["kernel", "rlimits"] = "kernel",
    ) -> None:
        """Args:
        workers: Number of questions or answers that are worked on at the same time.
        cpu_seconds: CPU limit of one draw of questions.
        answer_seconds: CPU limit of one answer's score; an answer that needs more has score 0.
        memory_mb: Maximum address space of a run in MiB.
        isolation: See `Executor`.
        """
        require_package(PACKAGE, "reasoning", PACKAGE)
        self.version = version(DISTRIBUTION)
        common: dict[str, Any] = {
            "workers": workers,
            "memory_mb": memory_mb,
            "isolation": isolation,
            "packages": [PACKAGE],
        }
        self._makes = Executor(cpu_seconds=cpu_seconds, output_characters=2_000_000, **common)
        self._scores = Executor(cpu_seconds=answer_seconds, **common)

    def levels(self, generators: Sequence[str]) -> list[int]:
        """Return the number of levels of each generator; raises ConfigError for an unknown one."""
        self._check(generators)
        outcomes = self._makes.run([_call("levels", name) for name in generators])
        return [int(self._value(*each)) for each in zip(generators, outcomes, strict=True)]

    def draw(self, requests: Sequence[Mapping[str, Any]]) -> list[list[Task]]:
        """Return the tasks of each request: different ones, up to the request's `count`.

        A request has the keys of `DRAWN`, and `labelled`.
        """
        self._check([str(each["name"]) for each in requests])
        outcomes = self._makes.run([_call("draw", *map(each.get, DRAWN)) for each in requests])
        return [
            [self._task(request, *made) for made in self._value(str(request["name"]), outcome)]
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def _task(self, request: Mapping[str, Any], question: str, answer: Any, entry: str) -> Task:
        labelled = request["labelled"] and answer is not None
        named = question_task(request["name"], question, str(answer) if labelled else None)
        gym = {"generator": request["name"], "version": self.version, "entry": entry}
        payload = {**named.payload, LEVEL: request["level"], "gym": gym}
        return Task(id=named.id, type=named.type, payload=payload)

    def score(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the package's score of an answer, in [0, 1].

        It is 0 if the verifier raises an error or takes too long. Raises ConfigError for a task
        that is not of this package, or of another version of it.
        """
        gym = payload.get("gym")
        known = isinstance(gym, Mapping) and all(
            isinstance(gym.get(key), str) for key in ("generator", "version", "entry")
        )
        if not known or not isinstance(gym, Mapping):
            raise ConfigError(
                "reasoning_gym: a task has no entry of reasoning_gym, so its answers cannot be "
                "scored; use curriculum=reasoning_gym, or another verifier"
            )
        if gym["version"] != self.version:
            raise ConfigError(
                f"reasoning_gym: a task was made by version {gym['version'][:20]!r}, and "
                f"{self.version} is installed; pip install '{DISTRIBUTION}=={gym['version'][:20]}'"
            )
        arguments = (gym["generator"], str(payload.get("question")), gym["entry"], answer)
        outcome = self._scores.run([_call("score", *map(well_formed, arguments))])[0]
        value = ast.literal_eval(outcome.value) if outcome.ok and outcome.value else 0.0
        return min(max(float(value), 0.0), 1.0) if isinstance(value, float) else 0.0

    def _check(self, generators: Sequence[str]) -> None:
        """Raise ConfigError for a name that is not a generator."""
        known = self._value("the list of generators", self._makes.run([_call("names")])[0])
        for name in generators:
            if name not in known:
                raise ConfigError(f"reasoning_gym: no generator {name!r}; {nearest(name, known)}")

    @staticmethod
    def _value(name: str, outcome: Outcome) -> Any:
        if not outcome.ok or outcome.value is None:
            raise ConfigError(f"reasoning_gym: {name}: {outcome.reason.value} ({outcome.detail})")
        return ast.literal_eval(outcome.value)

    def drain_metrics(self) -> dict[str, int]:
        """Return the numbers of scored answers by outcome since the last call."""
        self._makes.drain_metrics()
        return self._scores.drain_metrics()

    def close(self) -> None:
        """End the processes."""
        self._makes.close()
        self._scores.close()


def _call(entry: str, *arguments: Any) -> Call:
    return Call(program=PROGRAM, arguments=", ".join(map(repr, arguments)), entry=entry)


class ReasoningVerifier:
    """Verifier that scores an answer with the generator's own verifier."""

    blocking = True

    def __init__(self, *, reasoning_gym: ReasoningGym, partial: bool = False) -> None:
        """Args:
        reasoning_gym: The service of this name.
        partial: True: the package's scores, which are above 0 for many wrong answers. False: 1 for
            an answer with the full score, else 0.
        """
        self.reasoning_gym, self.partial = reasoning_gym, partial

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; raises ConfigError for a task of another source."""
        score = self.reasoning_gym.score(answer, payload)
        return score if self.partial else float(score == 1.0)


class ReasoningTasks:
    """Source of questions by generator and level, for `LevelCurriculum`."""

    def __init__(
        self,
        *,
        reasoning_gym: ReasoningGym,
        split: Split = "train",
        labelled: bool = True,
        config: Mapping[str, Mapping[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        """Args:
        reasoning_gym: The service of this name.
        split: Split of the questions. The splits share no question and no seed.
        labelled: If false, tasks have no `answer`, but still the entry that the verifier needs.
        config: Settings of generators by name, which replace those of the level.
        seed: Seed of all draws.
        """
        self.reasoning_gym, self.split, self.labelled = reasoning_gym, split, labelled
        self.config, self.seed = config or {}, seed

    def levels(self, generators: Sequence[str]) -> list[int]:
        """Return the number of levels of each generator."""
        return self.reasoning_gym.levels(generators)

    def draw(self, requests: Sequence[LevelDraw]) -> list[list[Task]]:
        """Return the tasks of each request, fewer than asked for if a generator has too few."""
        return self.reasoning_gym.draw(
            [self.request(each.generator, each.level, each.count, each.number) for each in requests]
        )

    def request(self, name: str, level: int | None, count: int, number: int) -> dict[str, Any]:
        """Return the request for tasks, with its own block of seeds."""
        if not 1 <= count <= MOST:
            raise ConfigError(f"reasoning_gym: count is from 1 to {MOST}, not {count}")
        held_out = self.split == "held_out"
        block = 2 * (derive(self.seed, PACKAGE, name, level, number) % BLOCKS) + held_out
        return {
            "name": name,
            "level": level,
            "settings": dict(self.config.get(name, {})),
            "seed": block * BLOCK,
            # A held-out question is one in five, and some questions come twice.
            "size": min(BLOCK, 40 + count * (12 if held_out else 4)),
            "count": count,
            "held_out": held_out,
            "labelled": self.labelled,
        }


def tasks(
    *,
    reasoning_gym: ReasoningGym,
    generators: Sequence[str] | Mapping[str, float],
    count: int,
    split: Split = "held_out",
    level: int | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    labelled: bool = True,
    seed: int = 0,
) -> list[Task]:
    """Return `count` different questions of each generator, for evaluations.

    Args:
        reasoning_gym: The service of this name.
        generators: Names of the generators; weights do not matter.
        count: Questions per generator.
        split, config, labelled, seed: See `ReasoningTasks`.
        level: Level of all generators; None: the package's own settings.
    Raises:
        ConfigError: For an unknown generator, or one with too few different questions.
    """
    source = ReasoningTasks(
        reasoning_gym=reasoning_gym, split=split, labelled=labelled, config=config, seed=seed
    )
    found = reasoning_gym.draw([source.request(name, level, count, 0) for name in generators])
    for name, made in zip(generators, found, strict=True):
        if len(made) < count:
            raise ConfigError(
                f"reasoning_gym: {name} has {len(made)} different questions among the seeds of one "
                f"draw, not {count}; lower count, or leave it out"
            )
    return [task for made in found for task in made]
