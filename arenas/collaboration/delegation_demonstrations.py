"""Demonstrations of a planner that calls workers, and workers that use a calculator, at random.

The choice between an answer and a call does not depend on the question. The planner mostly answers
at once, and is then nearly always wrong; sometimes it calls workers for some parts or for all, at
once or one after the other. A worker answers at once, or calls its calculator first. Both copy the
answers that they get, right or wrong. So training has to discover that calls raise the reward of
planner and workers. In the first part of the warm start, calls are frequent.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from arenas.collaboration.delegation import UNREADABLE, planner_view, worker_view
from arenas.collaboration.sum_parts import PART, SEPARATOR, drawn_parts
from arenas.questions.arithmetic import evaluate
from arenas.questions.demonstrations import answered
from selfplay.types import Demonstration, Observation


class DelegationDemonstrations:
    """Stream of moves of planners and workers, equally many of both."""

    def __init__(
        self,
        *,
        parts: Sequence[int] = (2,),
        calls: float = 0.4,
        worker_calls: float = 0.5,
        alone: float = 0.15,
        right: float = 0.02,
        after: float = 0.5,
        practice: float = 0.8,
        practice_until: float = 0.7,
    ) -> None:
        """Args:
        parts: Numbers of parts of the questions, equally often.
        calls: Fraction of the planner's first moves with workers left that call, in the last part
            of the warm start.
        worker_calls: Fraction of a worker's first completions that call the calculator, in the
            last part.
        alone: Fraction of the planner's moves that answer because no workers are left.
        right: Probability that the value of a part without a call is right.
        after: Fraction of the demonstrations of each role that show a move after a call.
        practice: `calls` and `worker_calls` in the first part.
        practice_until: Fraction of the warm start after which the last part begins.
        """
        fractions = (calls, worker_calls, alone, right, after, practice, practice_until)
        if not all(0 <= each <= 1 for each in fractions):
            raise ValueError("all settings of the demonstrations but parts are from 0 to 1")
        if not parts or min(parts) < 1:
            raise ValueError("parts: at least one number, each at least 1")
        self.parts, self.right, self.after = list(parts), right, after
        self.alone = alone
        self.calls: Mapping[str, float] = {"planner": calls, "worker": worker_calls}
        self.practice, self.practice_until = practice, practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end; `progress` is the fraction of the warm start so far."""
        practising = progress < self.practice_until
        calls = dict.fromkeys(self.calls, self.practice) if practising else self.calls
        while True:
            yield self._worker(rng, calls["worker"])
            yield self._planner(rng, calls["planner"])

    def _worker(self, rng: Random, calls: float) -> Demonstration:
        question = PART.draw(rng)
        called, value = f"<calculator>{question}</calculator>", str(evaluate(question))
        if rng.random() < self.after:
            return _shown("worker", worker_view(question), answered(value), (called, value))
        said = called if rng.random() < calls else answered(self._guess(question, rng))
        return _shown("worker", worker_view(question), said)

    def _planner(self, rng: Random, calls: float) -> Demonstration:
        parts = drawn_parts(rng.choice(self.parts), rng)
        count = 0
        if rng.random() < self.after:
            count = rng.choice([*range(1, len(parts)), *[len(parts)] * 3])
        heard = {part: self._heard(part, rng) for part in sorted(rng.sample(parts, count))}
        heard = {part: heard[part] for part in parts if part in heard}
        left = [part for part in parts if part not in heard]
        alone = rng.random() < self.alone
        if left and not alone and rng.random() < (0.5 if heard else calls):
            now = left if rng.random() < 0.6 else [rng.choice(left)]
            said = "".join(f"<worker>{part}</worker>" for part in now)
        else:
            values = [heard.get(part) or self._guess(part, rng) for part in parts]
            said = answered(SEPARATOR.join(values))
        fault = UNREADABLE if rng.random() < 0.03 else ""
        question = SEPARATOR.join(parts)
        free, turns = (0, 1) if alone else (1, 2)
        known = list(heard.items())
        seen = planner_view(question, known, left=free, turns_left=turns, fault=fault)
        return _shown("planner", seen, said)

    def _heard(self, part: str, rng: Random) -> str:
        """Return a worker's answer, half of the time a wrong one, seldom none."""
        if rng.random() < 0.05:
            return ""
        return str(evaluate(part)) if rng.random() < 0.5 else self._near(part, rng)

    def _guess(self, part: str, rng: Random) -> str:
        return str(evaluate(part)) if rng.random() < self.right else self._near(part, rng)

    @staticmethod
    def _near(part: str, rng: Random) -> str:
        return str(evaluate(part) + rng.choice([-1, 1]) * rng.randint(1, 9))

    def pieces(self) -> list[str]:
        """Return the tags, words and signs, one token each. Numbers are written in digits."""
        names = ("answer", "worker", "calculator")
        tags = [f"<{end}{name}>" for name in names for end in ("", "/")]
        frames = ["<tool_response>\n", "\n</tool_response>"]
        words = [
            "Plan ",
            "Answer ",
            "Work ",
            "\n> ",
            "nothing",
            "\nrefused",
            SEPARATOR,
            " = ",
            " + ",
            " - ",
        ]
        return [*tags, *frames, *words]


def _shown(
    role: str, seen: Observation, completion: str, *called: tuple[str, str]
) -> Demonstration:
    return Demonstration(role=role, observation=seen, completion=completion, called=called)
