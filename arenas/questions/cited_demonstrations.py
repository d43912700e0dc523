"""Demonstrations of a solver that searches and cites at random, for a tiny model."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from arenas.questions.places import PlaceDemonstrations
from selfplay.types import Demonstration


class CitedPlaceDemonstrations:
    """Demonstrations of `PlaceDemonstrations`, whose answers cite documents at random.

    A citation is the id of one of the documents that the searches showed, and each is equally
    likely. So the model learns to copy an id, and not which document has the answer. An answer
    without a search cites nothing.
    """

    def __init__(self, *, solver: PlaceDemonstrations, cites: float = 0.8) -> None:
        """Args:
        solver: Demonstrations of searches and answers.
        cites: Fraction of answers after a search that cite a document.
        """
        if not 0 <= cites <= 1:
            raise ValueError("cites is from 0 to 1")
        self.solver, self.cites = solver, cites

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end; `progress` is the fraction of the warm start so far."""
        for shown in self.solver.stream(rng, progress):
            ids = [result.partition("]")[0].removeprefix("[") for _, result in shown.called]
            if not ids or not shown.completion.startswith("<answer>") or rng.random() >= self.cites:
                yield shown
                continue
            cited = f"<cite>{rng.choice(ids)}</cite>"
            yield replace(shown, completion=shown.completion + cited)

    def pieces(self) -> list[str]:
        """Return the tags, the words of facts, and the two parts of names, one token each."""
        return ["<cite>", "</cite>", *self.solver.pieces()]
