"""Batches of the training loop: sampled on demand, or prefetched some steps ahead."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import Condition, Thread
from typing import Any, Protocol

from selfplay.curriculum import Curriculum
from selfplay.errors import StalledError
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.rollout.schedule import sampled_at
from selfplay.sampler import Sampler
from selfplay.types import Episode, Group

PATIENCE = 24 * 3600.0
"""Seconds that the loop waits for a batch. It is a last resort, because the rollout itself checks
that its processes are alive."""
REST = 600.0
"""Seconds that the loop waits for curriculum and sampler to pause between games."""
FAREWELL = 5.0
"""Seconds that the end of a run waits for games whose results are not needed any more."""


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """Groups of one step, with the metrics and states of the time when it was sampled.

    `Batches.take` makes it; the training loop reads it.
    """

    step: int
    """Step of the batch, from 1."""
    groups: list[Group]
    """Groups to learn from."""
    played: list[Group]
    """All groups that were played."""
    metrics: Mapping[str, float]
    """Metrics of curriculum and sampler."""
    curriculum_state: Mapping[str, Any] | None = None
    """The curriculum's state after the batch, if the step has a checkpoint."""


class Batches(Protocol):
    """Source of the training loop's batches: `OnDemandBatches` or `PrefetchedBatches`."""

    def take(self, step: int) -> StepBatch:
        """Return the batch of a step. Raises the error that occurred while it was sampled."""
        ...

    def learned(self, step: int) -> None:
        """Report that the weights of this step are published and its results are booked."""
        ...

    def curriculum_state(self) -> Mapping[str, Any]:
        """Return the curriculum's state after the latest step that was taken."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Return a context in which no curriculum and no sampler runs; games may continue."""
        ...

    def stop(self) -> None:
        """Stop sampling and drop batches that were not taken.

        This is called before the curriculum is restored and at the end of a run. A later `take`
        begins again from the curriculum's state at that time.
        """
        ...

    def close(self) -> None:
        """Stop, after the rollout is closed, and wait a few seconds for the games that this
        ends."""
        ...


@dataclass(frozen=True, kw_only=True)
class OnDemandBatches:
    """Samples each batch on demand with the current weights."""

    curriculum: Curriculum
    """Source of the tasks."""
    sampler: Sampler
    """Sampler of the groups."""
    rollout_fn: RolloutFn
    """Function that plays episodes."""
    seed: Callable[[], int]
    """Function that returns the seed of a batch."""
    wrap: Callable[[int, RolloutFn], RolloutFn] | None = None
    """Function that returns the rollout function of a step (`League.wrap`), called in the order of
    the steps before each is sampled; None: all steps use `rollout_fn`."""

    def take(self, step: int) -> StepBatch:
        """Sample the batch now."""
        rollout_fn = sampled_at(self.rollout_fn, step)
        if self.wrap is not None:
            rollout_fn = self.wrap(step, rollout_fn)
        groups = self.sampler.sample(self.curriculum, rollout_fn, step=step, seed=self.seed())
        metrics = {f"curriculum/{name}": value for name, value in self.curriculum.metrics().items()}
        metrics |= {f"sampler/{name}": value for name, value in self.sampler.metrics().items()}
        return StepBatch(step=step, groups=groups, played=self.sampler.played(), metrics=metrics)

    def learned(self, step: int) -> None:
        pass

    def curriculum_state(self) -> Mapping[str, Any]:
        """Return the curriculum's present state."""
        return self.curriculum.state_dict()

    def paused(self) -> AbstractContextManager[None]:
        """Return an empty context: nothing runs between calls of `take`."""
        return nullcontext()

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


class PrefetchedBatches:
    """A thread samples up to `max_staleness` steps ahead of the learner.

    Sampling of step s begins when step s - 1 - max_staleness has been learned from, so that no
    sample begins with weights that are more than `max_staleness` steps older than those that learn
    from it. The batches come in order and equal the ones that would be sampled on demand, except
    for the weights. Batches that were sampled and not taken when a run ends are sampled again by
    the resumed run.
    """

    def __init__(
        self,
        batches: OnDemandBatches,
        *,
        max_staleness: int,
        last: int,
        keeps: Callable[[int], bool],
        patience: float = PATIENCE,
    ) -> None:
        """Args:
        batches: Batches to sample ahead. Its `rollout_fn` may be called during another call.
        max_staleness: Number of steps ahead, at least 1.
        last: Step after which nothing is sampled.
        keeps: Function that returns True for a step whose checkpoint needs the curriculum's state.
        patience: Seconds that `take` waits; StalledError after that.
        """
        if max_staleness < 1:
            raise ValueError(f"a batch is sampled at least 1 step ahead, not {max_staleness}")
        self.batches, self.max_staleness, self.last = batches, max_staleness, last
        self.keeps, self.patience = keeps, patience
        self._ahead: _Prefetcher | None = None
        self._taken: StepBatch | None = None
        self._left: list[_Prefetcher] = []
        """Stopped threads that may still be in a game."""

    def take(self, step: int) -> StepBatch:
        """Return the next batch, once it is there."""
        if self._ahead is None:
            self._ahead = _Prefetcher(self, step)
            self._ahead.start()
        self._taken = self._ahead.take(step)
        return self._taken

    def learned(self, step: int) -> None:
        """Allow one more step to begin."""
        if self._ahead is not None:
            self._ahead.learned(step)

    def curriculum_state(self) -> Mapping[str, Any]:
        """Return the state after the latest step. Raises RuntimeError for a step whose state was
        not kept."""
        if self._taken is None:
            return self.batches.curriculum_state()
        if self._taken.curriculum_state is None:
            raise RuntimeError(f"the curriculum's state after step {self._taken.step} was not kept")
        return self._taken.curriculum_state

    def paused(self) -> AbstractContextManager[None]:
        """Return a context in which the thread runs no curriculum and no sampler; games in progress
        may continue."""
        return nullcontext() if self._ahead is None else self._ahead.paused()

    def stop(self) -> None:
        """Stop without waiting for games: the games in progress change no state any more."""
        ahead, self._ahead, self._taken = self._ahead, None, None
        if ahead is not None:
            ahead.stop()
            self._left = [thread for thread in (*self._left, ahead) if thread.is_alive()]

    def close(self) -> None:
        """Stop, and wait a few seconds for the threads, which otherwise end with the process."""
        self.stop()
        until = time.monotonic() + FAREWELL
        for thread in self._left:
            thread.join(max(0.0, until - time.monotonic()))


class _Stopped(BaseException):
    """Ends a stopped thread. It is not an Exception, so that no sampler takes it for a failed
    game."""


class _Prefetcher(Thread):
    """One sampling thread.

    It holds the lock except while it plays or waits, so that a thread that gets the lock finds
    curriculum, sampler and matchmaking paused, and a stopped thread changes none of them.
    """

    def __init__(self, settings: PrefetchedBatches, first: int) -> None:
        super().__init__(name="batches", daemon=True)
        self._settings, self._first, self._learned = settings, first, first - 1
        self._batches = replace(settings.batches, rollout_fn=self._play)
        self._changed = Condition()
        self._ready: deque[StepBatch] = deque()
        self._error: BaseException | None = None
        self._stopped = False

    def run(self) -> None:
        with self._changed:
            try:
                for step in range(self._first, self._settings.last + 1):
                    self._wait_for_learner(step)
                    self._ready.append(self._sampled(step))
                    self._changed.notify_all()
            except _Stopped:
                pass
            except BaseException as error:  # `take` raises it in the loop
                self._error = error
                self._changed.notify_all()

    def _wait_for_learner(self, step: int) -> None:
        """Wait without a time limit: the learner's own waits end, and `stop` ends this one."""
        earliest = step - 1 - self._settings.max_staleness
        self._changed.wait_for(lambda: self._stopped or self._learned >= earliest)
        if self._stopped:
            raise _Stopped

    def _sampled(self, step: int) -> StepBatch:
        begun = time.perf_counter()
        batch = self._batches.take(step)
        metrics = {**batch.metrics, "seconds/sampling": time.perf_counter() - begun}
        state = self._batches.curriculum_state() if self._settings.keeps(step) else None
        return replace(batch, metrics=metrics, curriculum_state=state)

    def _play(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        self._changed.release()
        try:
            return self._settings.batches.rollout_fn(specs)
        finally:
            self._changed.acquire()
            if self._stopped:
                raise _Stopped

    @contextmanager
    def paused(self) -> Iterator[None]:
        if not self._changed.acquire(timeout=REST):
            raise StalledError(f"curriculum and sampler did not pause within {REST:.0f} s")
        try:
            yield
        finally:
            self._changed.release()

    def take(self, step: int) -> StepBatch:
        with self.paused():
            there = self._changed.wait_for(
                lambda: self._ready or self._error, timeout=self._settings.patience
            )
            if not there:
                raise StalledError(
                    f"step {step}: no batch after {self._settings.patience:.0f} s; its games "
                    "neither end nor fail"
                )
            if not self._ready:
                assert self._error is not None
                raise self._error
            return self._ready.popleft()

    def learned(self, step: int) -> None:
        with self.paused():
            self._learned = step
            self._changed.notify_all()

    def stop(self) -> None:
        with self.paused():
            self._stopped = True
            self._changed.notify_all()
