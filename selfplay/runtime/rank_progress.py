"""The progress of learner ranks while they compute, so that slow work is not taken for a hang."""

from collections.abc import Sequence
from typing import Any


class RankProgress:
    """Asks ranks, in another thread of theirs, how many micro-batches they have begun."""

    def __init__(self, ray: Any, actors: Sequence[Any], *, group: str) -> None:
        """Args:
        ray: The package.
        actors: The ranks.
        group: Name of the thread of each rank that answers.
        """
        self._ray, self._actors, self._group = ray, actors, group
        self._asked: dict[int, Any] = {}
        """Open question by rank."""
        self._known: dict[int, int] = {}
        """Last known number of micro-batches by rank."""

    def grown(self) -> bool:
        """Return True if any rank has begun a micro-batch since it was last asked.

        This method does not wait for answers. The progress of one rank is enough, because ranks
        wait for each other in every micro-batch.
        """
        grown = False
        for rank, actor in enumerate(self._actors):
            if rank not in self._asked:
                question = actor.progress.options(concurrency_group=self._group)
                self._asked[rank] = question.remote()
            answered, _ = self._ray.wait([self._asked[rank]], timeout=0)
            if not answered:
                continue
            try:
                number = self._ray.get(self._asked.pop(rank))
            except self._ray.exceptions.RayError:
                continue  # the rank died; its result shows it
            grown |= number > self._known.get(rank, number)
            self._known[rank] = number
        return grown
