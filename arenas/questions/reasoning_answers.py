"""Demonstrations of the right answers to questions of the package `reasoning_gym` (2505.24760).

A small language model does not answer such questions in a form that a verifier reads, so it is
never paid. A short warm start on these demonstrations shows the form, and what kind of answer each
generator wants.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from arenas.questions.arena import question_view
from arenas.questions.reasoning_gym import ReasoningGym, ReasoningTasks
from selfplay.arena.demonstrations import ExampleSource
from selfplay.curriculum.levels import LevelDraw
from selfplay.errors import ConfigError
from selfplay.types import Demonstration


class ReasoningAnswers(ExampleSource):
    """Stream of the generators' own answers to questions of the training split."""

    def __init__(
        self,
        *,
        reasoning_gym: ReasoningGym,
        generators: Sequence[str] | Mapping[str, float],
        level: int = 0,
        count: int = 200,
        form: str = "<answer>{answer}</answer>",
        config: Mapping[str, Mapping[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        """Args:
        reasoning_gym: The service that makes the questions. It is closed after its only draw.
        generators: Names of the generators; each is shown equally often, whatever its weight.
        level: Level of all questions; a generator with fewer levels has its highest one.
        count: Number of different questions of each generator, at most; from 1 to 500.
        form: Text of an answer; `{answer}` stands for the generator's answer.
        config: Settings of generators by name, which replace those of the level.
        seed: Seed of the questions.
        """
        if form.count("{answer}") != 1:
            raise ValueError(f"form: {form!r} does not contain {{answer}} once")
        if level < 0:
            raise ValueError(f"level: {level} is below 0")
        self.reasoning_gym, self.generators = reasoning_gym, list(generators)
        self.level, self.count, self.form = level, count, form
        self.tasks = ReasoningTasks(reasoning_gym=reasoning_gym, config=config, seed=seed)
        self._shown: list[list[Demonstration]] = []

    def prepare(self, report: Callable[[str], None]) -> None:
        """Draw the questions, once. Raises ConfigError for a generator that gives no answers."""
        if self._shown:
            return
        highest = [count - 1 for count in self.tasks.levels(self.generators)]
        requests = [
            LevelDraw(generator=name, level=min(self.level, most), count=self.count, number=0)
            for name, most in zip(self.generators, highest, strict=True)
        ]
        drawn: list[list[Demonstration]] = []
        for request, found in zip(requests, self.tasks.draw(requests), strict=True):
            answered = [task.payload for task in found if "answer" in task.payload]
            shown = [self._demonstration(payload) for payload in answered]
            if not shown:
                raise ConfigError(
                    f"warm start: generator {request.generator} gives no answers at level "
                    f"{request.level}; leave it out of warmstart.examples.generators"
                )
            drawn.append(shown)
        self.reasoning_gym.close()
        self._shown = drawn
        report(
            f"warm start: {sum(map(len, self._shown)):,} answered questions of "
            f"{len(self.generators)} generators of reasoning_gym"
        )

    def _demonstration(self, payload: Mapping[str, Any]) -> Demonstration:
        completion = self.form.replace("{answer}", str(payload["answer"]))
        seen = question_view(str(payload["question"]))
        return Demonstration(role="solver", observation=seen, completion=completion)

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end: in each pass one of each generator, in random order."""
        self.prepare(lambda text: None)
        while True:
            for shown in rng.sample(self._shown, len(self._shown)):
                yield rng.choice(shown)
