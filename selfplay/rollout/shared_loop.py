"""One loop of work for the calls of several threads."""

from collections import deque
from collections.abc import Collection, Hashable
from threading import Condition
from typing import Generic, Protocol, TypeVar

C = TypeVar("C", bound=Hashable)


class LoopWork(Protocol[C]):
    """The work of a `SharedLoop`, which calls these methods in one thread at a time."""

    def begin(self) -> None:
        """Begin without calls."""
        ...

    def admits(self, call: C) -> bool:
        """Return True if a call may join the calls in progress; else it begins after their end."""
        ...

    def admit(self, call: C) -> None:
        """Add a call."""
        ...

    def advance(self) -> Collection[C]:
        """Do a part of the work; return the calls that have ended."""
        ...

    def end(self) -> None:
        """Drop the remaining work after the last call, or after an error."""
        ...


class SharedLoop(Generic[C]):
    """A loop that works on the calls of several threads at once, in the thread of one of them.

    `Rollout` and `RolloutWorkers` have one each. One thread at a time drives the loop: the first
    that calls `run` does so until its own call has ended, and then a thread whose call is still
    open takes over. If only one thread calls `run`, it does all the work itself. Calls are admitted
    in the order in which they came; no two open calls may be equal. An error ends all open calls,
    and each of their threads raises it.
    """

    def __init__(self, work: LoopWork[C]) -> None:
        """`work`: does the work of the calls."""
        self._work = work
        self._changed = Condition()
        self._open: set[C] = set()
        """Calls that have not ended: those that wait, and the active ones."""
        self._waiting: deque[C] = deque()
        self._active: set[C] = set()
        self._failed: dict[C, BaseException] = {}
        """Errors of calls whose threads have not raised them yet."""
        self._driven = False

    def run(self, call: C) -> None:
        """Return when a call has ended. Raises the error that ended the loop."""
        with self._changed:
            self._open.add(call)
            self._waiting.append(call)
            self._changed.wait_for(lambda: call not in self._open or not self._driven)
            if call not in self._open:
                error = self._failed.pop(call, None)
                if error is not None:
                    raise error
                return
            self._driven = True
        try:
            while call in self._open:
                self._turn()
        except BaseException as error:
            self._fail(error)
            self._failed.pop(call, None)
            raise
        finally:
            with self._changed:
                self._driven = False
                self._changed.notify_all()

    def _turn(self) -> None:
        """Admit the calls that may join, and do a part of the work."""
        while (call := self._next()) is not None:
            self._work.admit(call)
        done = self._work.advance()
        with self._changed:
            self._active.difference_update(done)
            self._open.difference_update(done)
            self._changed.notify_all()
        if not self._active:
            self._work.end()

    def _next(self) -> C | None:
        """Return the next call to admit, which is active from now on; None if there is none."""
        with self._changed:
            if not self._waiting:
                return None
            call = self._waiting[0]
            if not self._active:
                self._work.begin()
            elif not self._work.admits(call):
                return None
            self._active.add(self._waiting.popleft())
            return call

    def _fail(self, error: BaseException) -> None:
        """End all open calls with an error."""
        with self._changed:
            self._failed.update(dict.fromkeys(self._open, error))
            self._open.clear()
            self._active.clear()
            self._waiting.clear()
            self._changed.notify_all()
        self._work.end()
