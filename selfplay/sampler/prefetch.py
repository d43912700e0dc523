"""Batches of the training loop: sampled on demand, or prefetched some steps ahead."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Thread
from typing import Any, Protocol

from selfplay.author_code import saved_state
from selfplay.curriculum import Curriculum, reads_outcomes
from selfplay.curriculum.checked_calls import metrics_of
from selfplay.curriculum.step_tasks import StepTasks
from selfplay.errors import StalledError
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.rollout.schedule import sampled_at
from selfplay.sampler import Sampler, checked_calls
from selfplay.types import Episode, Group

BATCH_TIMEOUT = 24 * 3600.0
"""Maximum number of seconds of a wait for a batch. It is a last resort, because the rollout itself
checks that its processes are alive."""
PAUSE_TIMEOUT = 600.0
"""Maximum number of seconds until curriculum and sampler pause between games."""
CLOSE_TIMEOUT = 5.0
"""Maximum number of seconds that the end of a run waits for games that nothing needs any more."""


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
        """Report that the weights of this step are published and that the league has counted its
        results; a later step may now begin."""
        ...

    def curriculum_state(self) -> Mapping[str, Any]:
        """Return the curriculum's state after the latest step that was taken."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Return a context in which no curriculum and no sampler runs; games may continue."""
        ...

    def stop(self) -> None:
        """Stop sampling and drop batches that were not taken; games in progress may continue.

        A later `take` begins again from the curriculum's state at that time.
        """
        ...

    def drain(self) -> None:
        """Stop, and wait until the games in progress have ended.

        Training calls it before it restores a checkpoint. The games of discarded steps share the
        rollout with later games. An error in a discarded game would also end the later games, for
        example if the checkpoint lacks its policy, or if a learner is lost.
        """
        ...

    def close(self) -> None:
        """Stop after the rollout was closed; wait a few seconds until its games end."""
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
        sampler = self.sampler
        groups = checked_calls.groups_of(
            sampler, self.curriculum, rollout_fn, step=step, seed=self.seed()
        )
        metrics = {
            f"curriculum/{name}": value for name, value in metrics_of(self.curriculum).items()
        }
        metrics |= {
            f"sampler/{name}": value for name, value in checked_calls.metrics_of(sampler).items()
        }
        played = checked_calls.played_of(sampler, groups)
        return StepBatch(step=step, groups=groups, played=played, metrics=metrics)

    def learned(self, step: int) -> None:
        pass

    def curriculum_state(self) -> Mapping[str, Any]:
        """Return the curriculum's present state."""
        return saved_state(self.curriculum, "curriculum")

    def paused(self) -> AbstractContextManager[None]:
        """Return an empty context: no curriculum and no sampler runs between calls of `take`."""
        return nullcontext()

    def stop(self) -> None:
        pass

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


def overlap_problem(curriculum: Curriculum, sampler: Sampler) -> str:
    """Return the reason why no step may begin before the earlier one is complete; else ""."""
    if reads_outcomes(curriculum):
        return f"{type(curriculum).__name__} reads the outcomes of a step before the next one"
    if getattr(sampler, "refills", True):
        return f"{type(sampler).__name__} asks for tasks again, depending on a step's outcomes"
    return ""


class PrefetchedBatches:
    """Threads sample up to `max_staleness` steps ahead of the learner.

    Sampling of step s begins when step s - 1 - max_staleness has been learned from. The weights
    with which a sample begins are therefore at most `max_staleness` steps older than those that
    learn from it. Steps overlap: step s may begin when step s - 1 has its tasks and matches,
    although games of step s - 1 are still in progress. If tasks depend on outcomes
    (`overlap_problem`), step s begins when the batch of step s - 1 is complete. The batches come in
    order, and equal those that would be sampled on demand, except for the weights. Batches that a
    run has sampled and not taken when it ends are sampled again by the resumed run.
    """

    def __init__(
        self,
        batches: OnDemandBatches,
        *,
        max_staleness: int,
        last: int,
        keeps: Callable[[int], bool],
        timeout: float = BATCH_TIMEOUT,
    ) -> None:
        """Args:
        batches: Batches to sample ahead. Its `rollout_fn` may be called during other calls.
        max_staleness: Number of steps ahead, at least 1.
        last: Step after which nothing is sampled.
        keeps: Function that returns True for a step whose checkpoint needs the curriculum's state.
        timeout: Maximum number of seconds that `take` waits; StalledError after that.
        """
        if max_staleness < 1:
            raise ValueError(f"max_staleness must be at least 1, not {max_staleness}")
        self.batches, self.max_staleness, self.last = batches, max_staleness, last
        self.keeps, self.timeout = keeps, timeout
        self.overlaps = not overlap_problem(batches.curriculum, batches.sampler)
        self._ahead: _Prefetcher | None = None
        self._taken: StepBatch | None = None
        """Latest batch that was taken, without its episodes."""
        self._left: list[_Prefetcher] = []
        """Stopped prefetchers whose threads may still be in a game."""

    def take(self, step: int) -> StepBatch:
        """Return the next batch; wait until it is complete."""
        if self._ahead is None:
            self._ahead = _Prefetcher(self, step)
        batch = self._ahead.take(step)
        self._taken = replace(batch, groups=[], played=[])  # episodes may take much memory
        return batch

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
        """Return a context in which no thread runs the curriculum or the sampler; games in progress
        may continue."""
        return nullcontext() if self._ahead is None else self._ahead.paused()

    def stop(self) -> None:
        """Stop without waiting for games; the games in progress no longer change any state."""
        ahead, self._ahead, self._taken = self._ahead, None, None
        if ahead is not None:
            ahead.stop()
            self._left = [each for each in (*self._left, ahead) if each.is_alive()]

    def drain(self) -> None:
        """Stop, and wait for the threads, which end when their games have ended."""
        self.stop()
        left, self._left = self._left, []
        for each in left:
            each.join()

    def close(self) -> None:
        """Stop, and wait a few seconds for the threads, which otherwise end with the process."""
        self.stop()
        until = time.monotonic() + CLOSE_TIMEOUT
        for left in self._left:
            left.join(max(0.0, until - time.monotonic()))


class _Stopped(BaseException):
    """Ends a stopped thread. It is not an Exception, so that no sampler takes it for a failed
    game."""


class _Prefetcher:
    """The sampling threads, as many as steps may be in progress at the same time.

    A thread holds the lock except while it plays or waits. While another thread has the lock,
    curriculum, sampler and matchmaking are therefore paused. A stopped thread changes none of them.
    """

    def __init__(self, owner: PrefetchedBatches, first: int) -> None:
        self._owner, self._next, self._learned = owner, first, first - 1
        self._asked = first - 1
        """Latest step that has its tasks and matches."""
        self._changed = Condition()
        self._ready: dict[int, StepBatch] = {}
        self._errors: dict[int, BaseException] = {}
        self._stopped = False
        count = owner.max_staleness + 1 if owner.overlaps else 1
        self._threads = [
            Thread(target=self._run, name="batches", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self, timeout: float | None = None) -> None:
        begun = time.monotonic()
        for thread in self._threads:
            passed = time.monotonic() - begun
            thread.join(None if timeout is None else max(0.0, timeout - passed))

    def _run(self) -> None:
        with self._changed:
            while self._next <= self._owner.last and not self._errors:
                step, self._next = self._next, self._next + 1
                try:
                    self._wait_for_turn(step)
                    self._ready[step] = self._sampled(step)
                except _Stopped:
                    return
                except BaseException as error:  # `take` raises it in the loop
                    self._errors[step] = error
                self._changed.notify_all()

    def _wait_for_turn(self, step: int) -> None:
        """Wait until a step may begin; raises _Stopped after `stop` or an error in a step.

        There is no time limit here, because the waits of the learner have one.
        """
        earliest = step - 1 - self._owner.max_staleness
        self._changed.wait_for(
            lambda: (
                self._stopped
                or self._errors
                or (self._learned >= earliest and self._asked >= step - 1)
            )
        )
        if self._stopped or self._errors:
            raise _Stopped

    def _sampled(self, step: int) -> StepBatch:
        begun, batches = time.perf_counter(), self._owner.batches
        batches = replace(batches, rollout_fn=partial(self._play, step))
        if self._owner.overlaps:
            tasks = StepTasks(batches.curriculum, step)
            batches = replace(batches, curriculum=tasks, sampler=copy(batches.sampler))
        batch = batches.take(step)
        self._asked = max(self._asked, step)
        metrics = {**batch.metrics, "seconds/sampling": time.perf_counter() - begun}
        state = batches.curriculum_state() if self._owner.keeps(step) else None
        return replace(batch, metrics=metrics, curriculum_state=state)

    def _play(self, step: int, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        if self._owner.overlaps:
            self._asked = max(self._asked, step)
            self._changed.notify_all()
        self._changed.release()
        try:
            return self._owner.batches.rollout_fn(specs)
        finally:
            self._changed.acquire()
            if self._stopped:
                raise _Stopped

    @contextmanager
    def paused(self) -> Iterator[None]:
        if not self._changed.acquire(timeout=PAUSE_TIMEOUT):
            raise StalledError(f"curriculum and sampler did not pause within {PAUSE_TIMEOUT:.0f} s")
        try:
            yield
        finally:
            self._changed.release()

    def take(self, step: int) -> StepBatch:
        with self.paused():
            there = self._changed.wait_for(
                lambda: step in self._ready or any(failed <= step for failed in self._errors),
                timeout=self._owner.timeout,
            )
            if not there:
                raise StalledError(
                    f"step {step}: no batch after {self._owner.timeout:.0f} s; its games "
                    "neither end nor fail"
                )
            if step not in self._ready:
                raise self._errors[min(self._errors)]
            return self._ready.pop(step)

    def learned(self, step: int) -> None:
        with self.paused():
            self._learned = step
            self._changed.notify_all()

    def stop(self) -> None:
        with self.paused():
            self._stopped = True
            self._changed.notify_all()
