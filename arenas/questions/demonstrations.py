"""Demonstrations about sums for a tiny model that asks, answers, grades or advises.

The last part contains deliberate errors: an answer is right with a given probability, and otherwise
slightly wrong. So a policy knows the answer at the start of training but often gives another one,
which gives voting, grading and verification an effect.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random

from arenas.questions.arithmetic import evaluate, is_held_out
from arenas.questions.sums import Sums
from selfplay.types import Demonstration, Observation


class QuestionDemonstrations:
    """Stream of demonstrations of all roles about sums, in the proportions of `kinds`."""

    def __init__(
        self,
        *,
        kinds: Mapping[str, float],
        terms: tuple[int, int] = (2, 2),
        largest: int = 12,
        operations: str = "+-",
        right_share: float = 0.6,
        grade_share: float | None = None,
        practice_until: float = 0.85,
        harder: int = 1,
        common: int | None = None,
        rare_share: float = 0.1,
        lower: int = 0,
    ) -> None:
        """Args:
        kinds: Weights of the kinds: solver, proposer, easier, question_grade, answer_grade,
            generator, critic, refiner, mentor, advised_generator, advised_refiner.
        terms, largest, operations: Distribution of the questions, see `arenas.questions.sums.Sums`;
            held-out ones are never shown.
        right_share: Fraction of right answers in the last part of the warm start; before that part,
            all are right.
        grade_share: Fraction of right grades of answers in the last part; None for `right_share`.
        practice_until: Start of the last part, as a fraction of the warm start.
        harder: Maximum number of terms that an easier variant omits.
        common: Largest number in most questions; None for `largest`.
        rare_share: Fraction of questions with numbers up to `largest`, if `common` is set.
        lower: Maximum by which an easier variant lowers each number, in place of omitting terms; 0
            to omit terms.
        """
        self.domain = Sums(terms=terms, largest=largest, operations=operations)
        self.usual = self.domain if common is None else replace(self.domain, largest=common)
        self.rare_share, self.lower = rare_share, lower
        self.right_share, self.practice_until, self.harder = right_share, practice_until, harder
        self.grade_share = right_share if grade_share is None else grade_share
        self.practising = False
        shown: dict[str, Callable[[Random], Demonstration]] = {
            "solver": lambda rng: self._answered("solver", rng),
            "generator": lambda rng: self._answered("generator", rng),
            "proposer": self._asked,
            "easier": self._easier,
            "question_grade": self._question_grade,
            "answer_grade": self._answer_grade,
            "critic": self._critique,
            "refiner": lambda rng: self._refined(rng, advised=False),
            "mentor": self._advice,
            "advised_generator": self._advised,
            "advised_refiner": lambda rng: self._refined(rng, advised=True),
        }
        for kind in kinds:
            if kind not in shown:
                raise ValueError(f"kinds.{kind}: unknown, use some of {', '.join(shown)}")
        self.kinds = {shown[kind]: share for kind, share in kinds.items()}
        shares = (self.right_share, self.grade_share, self.rare_share)
        if not self.kinds or min(self.kinds.values()) < 0:
            raise ValueError("kinds: weights must be 0 or more, and one is needed")
        if not all(0 <= share <= 1 for share in shares) or lower < 0:
            raise ValueError(
                "right_share, grade_share and rare_share must lie in [0, 1]; lower is 0 or more"
            )

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end."""
        self.practising = progress < self.practice_until
        shown, weights = list(self.kinds), list(self.kinds.values())
        while True:
            yield rng.choices(shown, weights)[0](rng)

    def _draw(self, rng: Random) -> str:
        """Return a question; most have only common numbers if `common` is set."""
        rare = self.usual is self.domain or rng.random() < self.rare_share
        return (self.domain if rare else self.usual).draw(rng)

    def _answered(self, role: str, rng: Random) -> Demonstration:
        question = self._draw(rng)
        return _demonstration(role, _seen(question), answered(self._said(question, rng)))

    def _said(self, question: str, rng: Random) -> str:
        """Return the right answer or, at random, a wrong one."""
        return _near(question, rng) if self._slips(rng) else _value(question)

    @staticmethod
    def _perhaps(question: str, rng: Random) -> str:
        """Return another agent's answer, right with probability 0.5."""
        return _near(question, rng) if rng.random() < 0.5 else _value(question)

    def _slips(self, rng: Random, right: float | None = None) -> bool:
        """Return True for an error; `right` is the fraction of right answers; None: right_share."""
        return rng.random() >= (self.right_share if right is None else right) and (
            not self.practising
        )

    def _asked(self, rng: Random) -> Demonstration:
        asked = Observation(fields={"given": "", "references": []})
        return _demonstration("proposer", asked, f"<question>{self._draw(rng)}</question>")

    def _easier(self, rng: Random) -> Demonstration:
        if self.lower:
            given, question = self._lowered(rng)
        else:
            given, question = self._shortened(rng)
        hard = Observation(fields={"given": given, "references": []})
        return _demonstration("proposer", hard, f"<question>{question}</question>")

    def _shortened(self, rng: Random) -> tuple[str, str]:
        """Return a question and a variant of it with fewer terms, neither of them held out."""
        while True:
            question = self._draw(rng)
            words = question.split()
            for _ in range(rng.randint(1, self.harder)):
                number = str(rng.randint(0, self.domain.largest))
                words += [rng.choice(self.domain.operations), number]
            if not is_held_out(given := " ".join(words)):
                return given, question

    def _lowered(self, rng: Random) -> tuple[str, str]:
        """Return a question and a variant of it with lower numbers, neither of them held out."""
        while True:
            given = self.domain.draw(rng)
            words = given.split()
            for place in range(0, len(words), 2):
                words[place] = str(max(0, int(words[place]) - rng.randint(1, self.lower)))
            easier = " ".join(words)
            if easier != given and not is_held_out(easier):
                return given, easier

    def _question_grade(self, rng: Random) -> Demonstration:
        return _demonstration("judge", _seen(self._draw(rng)), "<score>9</score>")

    def _answer_grade(self, rng: Random) -> Demonstration:
        question = self._draw(rng)
        answer = self._perhaps(question, rng)
        right = (int(answer) == evaluate(question)) != self._slips(rng, self.grade_share)
        score = "<score>9</score>" if right else "<score>2</score>"
        return _demonstration("judge", _seen(question, answer), score)

    def _critique(self, rng: Random) -> Demonstration:
        question = self._draw(rng)
        answer = self._perhaps(question, rng)
        critique = "yes" if int(answer) == evaluate(question) else "no"
        return _demonstration("verifier", _seen(question, answer), critique)

    def _refined(self, rng: Random, *, advised: bool) -> Demonstration:
        question = self._draw(rng)
        seen = _seen(question, self._perhaps(question, rng), rng.choice(["yes", "no"]))
        if advised:
            return _demonstration("refiner", _advised(seen, question), answered(_value(question)))
        return _demonstration("refiner", seen, answered(self._said(question, rng)))

    def _advice(self, rng: Random) -> Demonstration:
        question = self._draw(rng)
        truth = {"question": question, "answer": _value(question)}
        seen = Observation(fields={"truth": truth, "transcript": "", "advised": ""})
        return _demonstration("mentor", seen, _value(question))

    def _advised(self, rng: Random) -> Demonstration:
        question = self._draw(rng)
        seen = _advised(_seen(question), question)
        return _demonstration("generator", seen, answered(_value(question)))

    def pieces(self) -> list[str]:
        """Return the tags, words and numbers, one token each."""
        tags = [f"<{end}{tag}>" for tag in ("answer", "question", "score") for end in ("", "/")]
        words = ["Ask", "Ease ", "Grade ", "Check ", "Advise ", "\nAdvice ", " | ", " = "]
        signs = [f" {sign} " for sign in self.domain.operations]
        numbers = map(str, range(2 * self.domain.largest + 4))
        return [*tags, *words, "yes", "no", *signs, *numbers]


def answered(answer: str) -> str:
    """Return the completion that gives an answer."""
    return f"<answer>{answer}</answer>"


def _demonstration(role: str, seen: Observation, completion: str) -> Demonstration:
    return Demonstration(role=role, observation=seen, completion=completion)


def _seen(question: str, answer: str = "", critique: str = "") -> Observation:
    """Return the observation of a pipeline's agent or a judge."""
    words = [word for word in (question, answer, critique) if word]
    fields = {"question": question, "answer": answer, "argument": "", "critique": critique}
    return Observation(text=" | ".join(words), fields={**fields, "best_score": 10})


def _advised(seen: Observation, question: str) -> Observation:
    return Observation(text=seen.text, fields={**seen.fields, "advice": _value(question)})


def _value(question: str) -> str:
    return str(evaluate(question))


def _near(question: str, rng: Random) -> str:
    return str(evaluate(question) + rng.choice([-3, -2, -1, 1, 2, 3]))
