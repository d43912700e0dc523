"""Where the training loop takes a step's batch from: sampled on the spot, or steps ahead."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import Condition, Thread
from typing import Any, Protocol

from selfplay.config.instantiate import build
from selfplay.curriculum import Curriculum
from selfplay.errors import ConfigError, StalledError
from selfplay.learner.objective import Objective
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.sampler import Sampler
from selfplay.types import Episode, Group

PATIENCE = 24 * 3600.0
"""Seconds that the loop waits for a batch: the last resort, because what plays looks for signs of
life in what it waits for."""
REST = 600.0
"""Seconds that the loop waits for a curriculum or a sampler to come to rest between games."""
FAREWELL = 5.0
"""Seconds that the end of a run waits for games that nobody wants any more."""


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """What a step learns from, with what else was so when it had been sampled."""

    step: int
    """The step."""
    groups: list[Group]
    """What is learned from."""
    played: list[Group]
    """All that was played."""
    metrics: Mapping[str, float]
    """Of curriculum and sampler."""
    curriculum_state: Mapping[str, Any] | None = None
    """Where it was asked for."""


class Batches(Protocol):
    """What the training loop asks of either."""

    def take(self, step: int) -> StepBatch:
        """The batch of a step; what went wrong while it was sampled is raised here."""
        ...

    def learned(self, step: int) -> None:
        """The weights of this step are out."""
        ...

    def curriculum_state(self) -> Mapping[str, Any]:
        """The curriculum's state behind the step that was taken last."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Meanwhile no curriculum and no sampler does anything; games may go on."""
        ...

    def stop(self) -> None:
        """Sample no more, and forget what was not taken: the curriculum is about to be restored, or
        the run ends. A later `take` begins again from where the curriculum then stands."""
        ...

    def close(self) -> None:
        """Stop, once what plays is closed: wait a little for the games that this ends."""
        ...


@dataclass(frozen=True, kw_only=True)
class OnDemandBatches:
    """Each batch is sampled when it is asked for, by the weights that learn from it."""

    curriculum: Curriculum
    """What is played."""
    sampler: Sampler
    """How."""
    rollout_fn: RolloutFn
    """By whom."""
    seed: Callable[[], int]
    """What the games of a batch are sampled with."""

    def take(self, step: int) -> StepBatch:
        """Sample it now."""
        groups = self.sampler.sample(self.curriculum, self.rollout_fn, step=step, seed=self.seed())
        figures = {f"curriculum/{name}": each for name, each in self.curriculum.metrics().items()}
        figures |= {f"sampler/{name}": each for name, each in self.sampler.metrics().items()}
        return StepBatch(step=step, groups=groups, played=self.sampler.played(), metrics=figures)

    def learned(self, step: int) -> None:
        """Nothing waits for it."""

    def curriculum_state(self) -> Mapping[str, Any]:
        """As it is."""
        return self.curriculum.state_dict()

    def paused(self) -> AbstractContextManager[None]:
        """As always."""
        return nullcontext()

    def stop(self) -> None:
        """Nothing goes on."""

    def close(self) -> None:
        """Nothing was started."""


class PrefetchedBatches:
    """A thread samples up to `lag` steps ahead of the learner.

    Step s begins when step s - 1 - lag has been learned from, so that no sample begins with weights
    more than `lag` steps behind those that learn from it. The batches come in order and are the
    ones that would be sampled on the spot, but for the weights. What was sampled and not taken when
    a run ends is sampled again by the run that goes on.
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
        batches: What is done ahead. Its `play` may be called while another call goes on.
        max_staleness: Steps, at least 1.
        last: Step after which nothing is sampled.
        keeps: Whether a step's checkpoint asks for the curriculum's state.
        patience: Seconds that `take` waits; StalledError after that.
        """
        if max_staleness < 1:
            raise ValueError(f"a batch is sampled at least 1 step ahead, not {max_staleness}")
        self.batches, self.max_staleness, self.last = batches, max_staleness, last
        self.keeps, self.patience = keeps, patience
        self._ahead: _Prefetcher | None = None
        self._taken: StepBatch | None = None
        self._left: list[_Prefetcher] = []
        """Stopped, and perhaps still in a game."""

    def take(self, step: int) -> StepBatch:
        """The next batch, once it is there."""
        if self._ahead is None:
            self._ahead = _Prefetcher(self, step)
            self._ahead.start()
        self._taken = self._ahead.take(step)
        return self._taken

    def learned(self, step: int) -> None:
        """One more step may be begun."""
        if self._ahead is not None:
            self._ahead.learned(step)

    def curriculum_state(self) -> Mapping[str, Any]:
        """As it was then; RuntimeError for a step whose state was not kept."""
        if self._taken is None:
            return self.batches.curriculum_state()
        if self._taken.curriculum_state is None:
            raise RuntimeError(f"the curriculum behind step {self._taken.step} was not kept")
        return self._taken.curriculum_state

    def paused(self) -> AbstractContextManager[None]:
        """The thread waits, once the games of its step are over."""
        return nullcontext() if self._ahead is None else self._ahead.paused()

    def stop(self) -> None:
        """Without waiting for games: those that are being played touch nothing any more."""
        ahead, self._ahead, self._taken = self._ahead, None, None
        if ahead is not None:
            ahead.stop()
            self._left = [each for each in (*self._left, ahead) if each.is_alive()]

    def close(self) -> None:
        """After that the threads die with the process."""
        self.stop()
        until = time.monotonic() + FAREWELL
        for each in self._left:
            each.join(max(0.0, until - time.monotonic()))


def validate(config: Mapping[str, Any], max_staleness: int) -> None:
    """Raise ConfigError for what would be wrong with samples of earlier weights."""
    if not max_staleness:
        return
    if config["league"]:
        raise ConfigError(
            f"runtime.max_staleness: {max_staleness} with a league, whose matches are drawn from "
            "the results of the step before; set max_staleness=0 or league=none"
        )
    objective: Objective = build(config["objective"], where="objective")
    if not objective.off_policy:
        raise ConfigError(
            f"objective: it takes samples for the present weights' own, and "
            f"runtime.max_staleness={max_staleness} makes them older; "
            "set objective.correction=truncated (or masked)"
        )


class _Stopped(BaseException):
    """Nobody wants the rest; not an Exception, so that no sampler takes it for a failed game."""


class _Prefetcher(Thread):
    """One thread's work. It holds the lock but while it plays or waits, so that whoever has the
    lock finds curriculum and sampler at rest."""

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
            except BaseException as error:  # the loop's, which raises it
                self._error = error
                self._changed.notify_all()

    def _wait_for_learner(self, step: int) -> None:
        """However long it takes: the learner's own waits end, and `stop` ends this one."""
        earliest = step - 1 - self._settings.max_staleness
        self._changed.wait_for(lambda: self._stopped or self._learned >= earliest)
        if self._stopped:
            raise _Stopped

    def _sampled(self, step: int) -> StepBatch:
        begun = time.perf_counter()
        batch = self._batches.take(step)
        figures = {**batch.metrics, "seconds/sampling": time.perf_counter() - begun}
        kept = self._batches.curriculum_state() if self._settings.keeps(step) else None
        return replace(batch, metrics=figures, curriculum_state=kept)

    def _play(self, jobs: Sequence[EpisodeSpec]) -> list[Episode]:
        self._changed.release()
        try:
            return self._settings.batches.rollout_fn(jobs)
        finally:
            self._changed.acquire()
            if self._stopped:
                raise _Stopped

    @contextmanager
    def paused(self) -> Iterator[None]:
        if not self._changed.acquire(timeout=REST):
            raise StalledError(
                f"no end after {REST:.0f} s of what curriculum and sampler do between games"
            )
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
                    f"step {step}: no batch after {self._settings.patience:.0f} s; what plays its "
                    "games neither ends nor fails"
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
