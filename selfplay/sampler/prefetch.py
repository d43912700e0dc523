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
from selfplay.learner.objective import Surrogate
from selfplay.rollout.rollout import Job, Play
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
class Batch:
    """What a step learns from, with what else was so when it had been sampled."""

    step: int
    """The step."""
    groups: list[Group]
    """What is learned from."""
    played: list[Group]
    """All that was played."""
    figures: Mapping[str, float]
    """Of curriculum and sampler."""
    curriculum_state: Mapping[str, Any] | None = None
    """Where it was asked for."""


class Batches(Protocol):
    """What the training loop asks of either."""

    def take(self, step: int) -> Batch:
        """The batch of a step; what went wrong while it was sampled is raised here."""
        ...

    def learned(self, step: int) -> None:
        """The weights of this step are out."""
        ...

    def curriculum_state(self) -> Mapping[str, Any]:
        """The curriculum's state behind the step that was taken last."""
        ...

    def at_rest(self) -> AbstractContextManager[None]:
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
class Synchronous:
    """Each batch is sampled when it is asked for, by the weights that learn from it."""

    curriculum: Curriculum
    """What is played."""
    sampler: Sampler
    """How."""
    play: Play
    """By whom."""
    seed: Callable[[], int]
    """What the games of a batch are sampled with."""

    def take(self, step: int) -> Batch:
        """Sample it now."""
        groups = self.sampler.sample(self.curriculum, self.play, step=step, seed=self.seed())
        figures = {f"curriculum/{name}": each for name, each in self.curriculum.metrics().items()}
        figures |= {f"sampler/{name}": each for name, each in self.sampler.metrics().items()}
        return Batch(step=step, groups=groups, played=self.sampler.played(), figures=figures)

    def learned(self, step: int) -> None:
        """Nothing waits for it."""

    def curriculum_state(self) -> Mapping[str, Any]:
        """As it is."""
        return self.curriculum.state_dict()

    def at_rest(self) -> AbstractContextManager[None]:
        """As always."""
        return nullcontext()

    def stop(self) -> None:
        """Nothing goes on."""

    def close(self) -> None:
        """Nothing was started."""


class Asynchronous:
    """A thread samples up to `lag` steps ahead of the learner.

    Step s begins when step s - 1 - lag has been learned from, so that no sample begins with weights
    more than `lag` steps behind those that learn from it. The batches come in order and are the
    ones that would be sampled on the spot, but for the weights. What was sampled and not taken when
    a run ends is sampled again by the run that goes on.
    """

    def __init__(
        self,
        batches: Synchronous,
        *,
        lag: int,
        last: int,
        keeps: Callable[[int], bool],
        patience: float = PATIENCE,
    ) -> None:
        """Args:
        batches: What is done ahead. Its `play` may be called while another call goes on.
        lag: Steps, at least 1.
        last: Step after which nothing is sampled.
        keeps: Whether a step's checkpoint asks for the curriculum's state.
        patience: Seconds that `take` waits; StalledError after that.
        """
        if lag < 1:
            raise ValueError(f"a batch is sampled at least 1 step ahead, not {lag}")
        self.batches, self.lag, self.last = batches, lag, last
        self.keeps, self.patience = keeps, patience
        self._ahead: _Ahead | None = None
        self._taken: Batch | None = None
        self._left: list[_Ahead] = []
        """Stopped, and perhaps still in a game."""

    def take(self, step: int) -> Batch:
        """The next batch, once it is there."""
        if self._ahead is None:
            self._ahead = _Ahead(self, step)
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

    def at_rest(self) -> AbstractContextManager[None]:
        """The thread waits, once the games of its step are over."""
        return nullcontext() if self._ahead is None else self._ahead.at_rest()

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


def validate(config: Mapping[str, Any], lag: int) -> None:
    """Raise ConfigError for what would be wrong with samples of earlier weights."""
    if not lag:
        return
    if config["league"]:
        raise ConfigError(
            f"runtime.max_lag: {lag} with a league, whose matches are drawn from the results of "
            "the step before; set max_lag=0 or league=none"
        )
    objective: Surrogate = build(config["objective"], where="objective")
    if not objective.off_policy:
        raise ConfigError(
            f"objective: it takes samples for the present weights' own, and runtime.max_lag={lag} "
            "makes them older; set objective.correction=truncated (or masked)"
        )


class _Stopped(BaseException):
    """Nobody wants the rest; not an Exception, so that no sampler takes it for a failed game."""


class _Ahead(Thread):
    """One thread's work. It holds the lock but while it plays or waits, so that whoever has the
    lock finds curriculum and sampler at rest."""

    def __init__(self, settings: Asynchronous, first: int) -> None:
        super().__init__(name="batches", daemon=True)
        self._settings, self._first, self._learned = settings, first, first - 1
        self._batches = replace(settings.batches, play=self._play)
        self._changed = Condition()
        self._ready: deque[Batch] = deque()
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
        earliest = step - 1 - self._settings.lag
        self._changed.wait_for(lambda: self._stopped or self._learned >= earliest)
        if self._stopped:
            raise _Stopped

    def _sampled(self, step: int) -> Batch:
        begun = time.perf_counter()
        batch = self._batches.take(step)
        figures = {**batch.figures, "seconds/sampling": time.perf_counter() - begun}
        kept = self._batches.curriculum_state() if self._settings.keeps(step) else None
        return replace(batch, figures=figures, curriculum_state=kept)

    def _play(self, jobs: Sequence[Job]) -> list[Episode]:
        self._changed.release()
        try:
            return self._settings.batches.play(jobs)
        finally:
            self._changed.acquire()
            if self._stopped:
                raise _Stopped

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        if not self._changed.acquire(timeout=REST):
            raise StalledError(
                f"no end after {REST:.0f} s of what curriculum and sampler do between games"
            )
        try:
            yield
        finally:
            self._changed.release()

    def take(self, step: int) -> Batch:
        with self.at_rest():
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
        with self.at_rest():
            self._learned = step
            self._changed.notify_all()

    def stop(self) -> None:
        with self.at_rest():
            self._stopped = True
            self._changed.notify_all()
