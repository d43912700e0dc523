"""A process that reads a taskset of the library `verifiers` and scores answers to its tasks."""

import json
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from arenas.questions import _taskset_program

PROGRAM = Path(_taskset_program.__file__).read_text(encoding="utf-8")
TAIL = 4000
"""Bytes at the end of the error output that are searched for the reason of an end."""
NoScore = Literal["raised", "timeout", "ended"]


class TasksetError(Exception):
    """A request without a result."""

    def __init__(self, reason: NoScore, detail: str) -> None:
        """Args:
        reason: raised: code of the taskset raised an error. timeout: no reply in time. ended: the
            process ended.
        detail: The reason in words, one line.
        """
        super().__init__(detail)
        self.reason = reason


class TasksetProcess:
    """One process of the program; it starts at the first request, and again after its end."""

    def __init__(
        self, *, command: Sequence[str], settings: Mapping[str, Any], load_seconds: float
    ) -> None:
        """Args:
        command: The interpreter and its options.
        settings: First line of the program's input, see `_taskset_program.TasksetReader`.
        load_seconds: Time limit of the start, in seconds.
        """
        self.command, self.settings = [*command, "-c", PROGRAM], settings
        self.load_seconds = load_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = bytearray()

    def start(self) -> None:
        """Start the process and load the taskset, unless it runs; raises TasksetError."""
        if self._process is not None:
            return
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            raise TasksetError("ended", f"{self.command[0]}: {error.strerror}") from error
        self._unread = bytearray()
        try:
            self._exchanged(self.settings, self.load_seconds)
        except TasksetError:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply to a request; raises TasksetError. Without one, the process is ended."""
        self.start()
        try:
            return self._exchanged(request, seconds)
        except TasksetError as error:
            if error.reason != "raised":
                self.close()
            raise

    def _exchanged(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        reply: dict[str, Any] = json.loads(self._line(seconds))
        if "error" in reply:
            raise TasksetError("raised", reply["error"])
        return reply

    def _line(self, seconds: float) -> bytes:
        """Return the next line of output."""
        assert self._process is not None and self._process.stdout is not None
        output = self._process.stdout.fileno()
        until = monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._unread[-1:]:
                if not selector.select(max(until - monotonic(), 0.0)):
                    raise TasksetError("timeout", f"no result in {seconds:g} s")
                piece = os.read(output, 1 << 20)
                if not piece:
                    raise self._ended()
                self._unread += piece
        line, self._unread = bytes(self._unread), bytearray()
        return line

    def _ended(self) -> TasksetError:
        """Return the error of a process that has ended, with its last words."""
        assert self._process is not None
        code = self._process.wait()
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - TAIL, 0))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return TasksetError("ended", f"its process ended with code {code} ({last[:300]})")

    def close(self) -> None:
        """End the process and those that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
