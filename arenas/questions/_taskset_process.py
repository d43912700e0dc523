"""A process that reads a taskset of the library `verifiers` and scores answers to its tasks."""

import fcntl
import json
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any, Literal

from arenas.questions import _taskset_program

PROGRAM = Path(_taskset_program.__file__).read_text(encoding="utf-8")
TAIL = 4000
"""Bytes at the end of the error output that are searched for the reason of an end."""
MOST_ERRORS = 1 << 20
"""Bytes of error output that are kept."""
GRACE = 10.0
"""Seconds after the time limit of an answer in which the program itself can end its rewards."""
NoScore = Literal["raised", "timeout", "ended"]


class TasksetError(Exception):
    """A request without a result."""

    def __init__(self, reason: NoScore, detail: str) -> None:
        """Args:
        reason: raised: code of the taskset raised an error. timeout: no result in time. ended: the
            process ended, or gave no reply that can be read.
        detail: The reason in words, one line.
        """
        super().__init__(detail)
        self.reason = reason


class TasksetProcess:
    """One process of the program; it starts at the first request, and again after its end.

    One thread at a time uses it. Another one may call `kill`.
    """

    def __init__(self, *, python: str, settings: Mapping[str, Any], load_seconds: float) -> None:
        """Args:
        python: The interpreter.
        settings: First line of the program's input, see `_taskset_program.TasksetReader`.
        load_seconds: Time limit of the start, in seconds.
        """
        self.python, self.settings, self.load_seconds = python, settings, load_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._errors: IO[bytes]
        self._files: list[IO[bytes]] = []
        self._unread = bytearray()

    def start(self) -> None:
        """Start the process and load the taskset, unless it runs; raises TasksetError."""
        if self._process is not None and self._owner == os.getpid():
            return
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        # Appending, so that the file can be cut while the process writes to it.
        fcntl.fcntl(errors, fcntl.F_SETFL, fcntl.fcntl(errors, fcntl.F_GETFL) | os.O_APPEND)
        watched, held = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P: the current folder comes last, so that no file of it hides a module.
                [self.python, "-P", "-c", PROGRAM, str(watched)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=[watched],
                start_new_session=True,
            )
        except OSError as error:
            os.close(held)
            errors.close()
            raise TasksetError(
                "ended",
                f"{self.python}: {error.strerror}; services.taskset.python names an interpreter",
            ) from error
        finally:
            os.close(watched)
        self._owner, self._unread = os.getpid(), bytearray()
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        # The end of the last file tells the process that this one has ended.
        life = os.fdopen(held, "wb", buffering=0)
        self._files = [self._process.stdin, self._process.stdout, errors, life]
        self._errors = errors
        try:
            self._answered(self.settings, self.load_seconds)
        except TasksetError:
            self.close()  # also if it lives, because it has no taskset
            raise

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply to a request; raises TasksetError. Without a reply, the process ends."""
        self.start()
        return self._answered(request, seconds)

    def _answered(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply to a line; raises TasksetError, also for a reply that is an error."""
        try:
            reply = self._exchanged(json.dumps(request).encode() + b"\n", seconds)
        except BaseException:  # also an interruption: a later reply would be taken for the next
            self.close()
            raise
        if os.fstat(self._errors.fileno()).st_size > MOST_ERRORS:
            self._errors.truncate(0)
        if "error" in reply:
            raise TasksetError("raised", reply["error"])
        if "timeout" in reply:
            raise TasksetError("timeout", reply["timeout"])
        return reply

    def _exchanged(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send a line and return the object of the next line of output."""
        requests, replies = (file.fileno() for file in self._files[:2])
        until = monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(requests, selectors.EVENT_WRITE)
            selector.register(replies, selectors.EVENT_READ)
            while not self._unread.endswith(b"\n"):
                ready = selector.select(max(until - monotonic(), 0.0))
                if not ready:
                    raise TasksetError("timeout", f"no reply in {seconds:g} s")
                for key, _ in ready:
                    if key.fd == replies:
                        piece = os.read(replies, 1 << 20)
                        if not piece:
                            raise self._ended()
                        self._unread += piece
                        continue
                    try:
                        request = request[os.write(requests, request) :]
                    except BrokenPipeError:
                        raise self._ended() from None
                    if not request:
                        selector.unregister(requests)
        line, self._unread = bytes(self._unread), bytearray()
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            wrote = line[:100].strip().decode("utf-8", "replace")
            raise TasksetError(
                "ended",
                f"its process wrote {wrote!r} in place of a reply; "
                "services.taskset.python names a Python interpreter that prints nothing",
            )
        return reply

    def _ended(self) -> TasksetError:
        """Return the error of a process that has ended its output, with its last words."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - TAIL, 0))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        code = self._process.returncode
        how = "ended its output" if code is None else f"ended with code {code}"
        return TasksetError("ended", f"its process {how} ({last[:300]})")

    def kill(self) -> None:
        """End the process and those of its session; the thread that waits for it gets an error."""
        process = self._process
        if process is not None and self._owner == os.getpid():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and close its files."""
        self.kill()
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.wait()
        for file in self._files:
            with suppress(OSError):
                file.close()
        self._files = []
