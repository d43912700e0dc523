"""Rendering of untrusted templates within a limit of processor time.

A sandbox keeps a template from reaching Python's internals, but a template can loop forever. So a
thread watches the rendering threads, and stops one that needs too much processor time by an
exception. The exception is raised between two steps of Python code and cannot interrupt a single
operation in C. Therefore `**`, which can take hours, is refused when a template is checked.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from jinja2 import Environment, TemplateError

from selfplay.errors import ConfigError

SECONDS = 10.0
"""Processor seconds that one rendering may take. Usual ones take under a millisecond."""
TICK = 0.25
"""Seconds between two checks by the watching thread."""

Rendered = TypeVar("Rendered")


class _TooLong(BaseException):
    """Raised in a rendering thread by the watching thread. No template can catch it."""


@dataclass(eq=False)
class _Watched:
    """One rendering that is running."""

    thread: int
    """Identifier of its thread."""
    clock: Callable[[], float]
    """The thread's processor time in seconds."""
    until: float
    """Processor time at which the thread is stopped."""
    stopped: bool = False
    """True if the thread was stopped."""


@dataclass(eq=False)
class _Watch:
    """The renderings that run in this process, and the thread that watches them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    watched: list[_Watched] = field(default_factory=list)
    thread: threading.Thread | None = None

    def add(self, seconds: float) -> _Watched:
        """Watch the calling thread from now on."""
        thread = threading.get_ident()
        clock = _clock_of(thread)
        each = _Watched(thread=thread, clock=clock, until=clock() + seconds)
        with self.lock:
            self.watched.append(each)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._look, daemon=True, name="templates")
                self.thread.start()
        return each

    def remove(self, each: _Watched) -> None:
        """Stop watching a rendering; may be called twice."""
        with self.lock:
            if each in self.watched:
                self.watched.remove(each)

    def _look(self) -> None:
        while True:
            time.sleep(TICK)
            with self.lock:
                if not self.watched:
                    self.thread = None
                    return
                for each in self.watched:
                    if not each.stopped and each.clock() > each.until:
                        each.stopped = True
                        _raise_in(each.thread)


def _clock_of(thread: int) -> Callable[[], float]:
    """Return the clock of a thread's processor time; wall-clock time if the system has none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLong))


_watch = _Watch()


def _begin_again() -> None:
    """Forget the threads of the parent process, which a fork does not copy."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_begin_again)


def bounded(render: Callable[[], Rendered], *, seconds: float | None = None) -> Rendered:
    """Return the result of `render`; raise TemplateError if it takes too much CPU time.

    `seconds` is the limit; None: `SECONDS`.
    """
    limit = SECONDS if seconds is None else seconds
    each: _Watched | None = None
    try:
        each = _watch.add(limit)
        try:
            return render()
        finally:
            _watch.remove(each)
    except _TooLong:
        if each is not None:
            _watch.remove(each)
        raise TemplateError(
            f"it takes more than {limit:g} s to render; it may be endless"
        ) from None


def check_template(source: str, *, where: str) -> None:
    """Raise ConfigError for a template that raises to a power: one such step can take hours."""
    try:
        for line, kind, text in Environment().lex(source):
            if kind == "operator" and text == "**":
                raise ConfigError(f"{where}: line {line} of its template uses **; remove it")
    except TemplateError:
        return  # compiling the template reports its error
