"""Answers in the memory arena: scripted readers, and the scores of all answers of an episode."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from selfplay.credit.rewards import exact_match, mean, token_f1

Outcome = Literal["exact_match", "f1"]


@runtime_checkable
class Reader(Protocol):
    """Protocol of a scripted answer agent."""

    def __call__(self, question: str, memories: Sequence[str]) -> str:
        """Return the answer; `memories` are rendered texts, the nearest to the question first."""
        ...


class AnswerScores:
    """Scores of all answers of an episode."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def add(
        self, question: Mapping[str, Any], answer: str | None, turns: Collection[int]
    ) -> dict[str, float]:
        """Record and return the scores of one answer; None is an invalid one.

        `turns` are the indices of the turns from which the shown memories come: `evidence_shown` is
        1 if all turns that the question names as its evidence are among them.
        """
        gold = str(question["answer"])
        scores = {
            "exact_match": 0.0 if answer is None else exact_match(answer, gold),
            "f1": 0.0 if answer is None else token_f1(answer, gold),
        }
        if evidence := set(question.get("evidence", ())):
            scores["evidence_shown"] = float(evidence <= set(turns))
        self.rows.append(scores)
        return scores

    def of(self, name: str) -> list[float]:
        """Return the scores with this name, one for each answer that has it."""
        return [scores[name] for scores in self.rows if name in scores]

    def means(self) -> dict[str, float]:
        """Return the mean of each score, over the answers that have it."""
        names = ("exact_match", "f1", "evidence_shown")
        return {name: mean(values) for name in names if (values := self.of(name))}
