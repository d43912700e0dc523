"""Workers and learner ranks that share GPUs: one kind computes while the other one rests."""

import time
from collections.abc import Callable


class Colocation:
    """Lets the workers play and the ranks learn one after the other.

    `RayRuntime` makes it for `runtime.colocated`. `play` is called before the workers get episodes,
    and `learn` before every call of the ranks. A process that rests has its tensors in main memory.
    """

    def __init__(self, *, workers_rest: Callable[[], None], ranks_rest: Callable[[], None]) -> None:
        """Args:
        workers_rest: Moves the workers' tensors to main memory and waits until that is done; the
            next episodes move them back.
        ranks_rest: The same for the ranks.
        """
        self._workers_rest, self._ranks_rest = workers_rest, ranks_rest
        # The workers start first, so that their engines find the GPUs empty.
        self._workers_compute = True
        self.seconds = 0.0
        """Seconds spent in moving tensors to main memory since they were last reset."""

    def play(self) -> None:
        """Let the workers compute."""
        if not self._workers_compute:
            self._switch(self._ranks_rest)
            self._workers_compute = True

    def learn(self) -> None:
        """Let the ranks compute."""
        if self._workers_compute:
            self._switch(self._workers_rest)
            self._workers_compute = False

    def _switch(self, rest: Callable[[], None]) -> None:
        began = time.perf_counter()
        rest()
        self.seconds += time.perf_counter() - began


def check_colocated(
    workers: int,
    learners: int | None,
    worker_gpus: float | None,
    learner_gpus: float | None,
    max_staleness: int,
) -> None:
    """Raise ValueError for settings that do not fit workers and ranks on the same GPUs."""
    if max_staleness:
        raise ValueError(
            "max_staleness must be 0 with colocated=true, because workers do not play while the "
            f"ranks learn, not {max_staleness}"
        )
    if learners not in (None, workers):
        raise ValueError(
            f"learners must be {workers}, the number of workers, with colocated=true, not "
            f"{learners}; or leave it null"
        )
    if (worker_gpus, learner_gpus) != (None, None):
        raise ValueError(
            "worker_gpus and learner_gpus must be null with colocated=true: each pair of worker "
            "and rank has one GPU"
        )
