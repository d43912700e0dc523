"""Handling of SIGINT and SIGTERM: both raise KeyboardInterrupt, but not during an import.

An exception in the middle of an import leaves a module incomplete: the result is a traceback of
that module, or the exception is lost in a C extension. A signal during an import is therefore
remembered, and raised when the import has ended.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

EXIT_CODE = 130
"""Exit code of an interrupted command."""
PAUSE = 0.1
"""Seconds between two checks that the import has ended."""
PATIENCE = 120.0
"""Seconds after which an import is interrupted nevertheless, because it may never end."""

_IMPORT = "<frozen importlib._bootstrap>"
"""File name of Python's code that imports modules."""

_noted: float | None = None
_raised: signal.Signals | None = None


def install() -> None:
    """Handle both signals from now on. Call this function in the main thread."""
    global _noted, _raised
    _noted, _raised = None, None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


@contextmanager
def handled() -> Iterator[None]:
    """Handle both signals in this context, and as before after it.

    Outside the main thread, where Python allows no handlers, nothing changes.
    """
    global _noted, _raised
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install()
    try:
        yield
    finally:
        _noted, _raised = None, None
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def raised() -> bool:
    """Return True if a signal has raised KeyboardInterrupt, even if a C library lost the error."""
    return _raised is not None


def reason() -> str:
    """Return the reason of an interruption, such as "interrupted by SIGTERM"; "" without one."""
    if _raised is None:
        return ""
    key = " (Ctrl-C)" if _raised is signal.SIGINT else ""
    return f"interrupted by {_raised.name}{key}"


def check() -> None:
    """Raise KeyboardInterrupt if an earlier one was lost, such as in a callback of a C library."""
    if raised():
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _noted, _raised
    now = time.monotonic()
    if _noted is None:
        _noted = now
    if _uninterruptible(frame) and now - _noted < PATIENCE:
        again = threading.Thread(target=_later, args=(number, _noted + PATIENCE), daemon=True)
        with suppress(RuntimeError):  # the system cannot start another thread
            again.start()
            return
    _raised = signal.Signals(number)
    raise KeyboardInterrupt


def _later(number: int, until: float) -> None:
    """Send a signal to this process again when its main thread can be interrupted."""
    main = threading.main_thread().ident
    while time.monotonic() < until:
        time.sleep(PAUSE)
        if main is None or not _uninterruptible(sys._current_frames().get(main)):
            break
    os.kill(os.getpid(), number)


def _uninterruptible(frame: FrameType | None) -> bool:
    """Return True if an import or a `__del__` is running in this stack of frames.

    Python prints an exception in a `__del__` and then drops it.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
