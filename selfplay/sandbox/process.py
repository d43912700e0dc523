"""Parent side of one warmed process: starts it, sends requests, judges its replies."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Generic, Literal, TypeVar

from selfplay.errors import SelfplayError
from selfplay.sandbox import protocol
from selfplay.sandbox.literals import LiteralError, TooLargeError, canonical, parse_literal
from selfplay.sandbox.seccomp import SeccompMissingError, system_call_filter
from selfplay.sandbox.types import Call, FailureReason, Outcome, failure

Job = TypeVar("Job")
START_SECONDS = 60.0  # maximum time until the first answer of a started process
IMPORT_SECONDS = 240.0  # the same for a process that imports packages first
GRACE_SECONDS = 10.0  # time after a run's wall-clock limit until its process counts as lost
_REPORTED = frozenset(  # reasons that a run may report itself; none of them is rewarded
    {
        FailureReason.SYNTAX,
        FailureReason.NO_ENTRY,
        FailureReason.RAISED,
        FailureReason.MEMORY,
        FailureReason.FORBIDDEN,
        FailureReason.OUTPUT_LIMIT,
        FailureReason.NOT_PLAIN_DATA,
        FailureReason.EXITED,
    }
)


class IsolationError(SelfplayError):
    """Raised if this system cannot isolate programs as configured, or the process that runs them
    does not start in time; says why."""


class LostError(Exception):
    """Raised if the warmed process died or does not answer."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of every run. `Executor` makes it from its arguments of the same names."""

    wall_seconds: float
    """Maximum duration of a run in seconds."""
    cpu_seconds: float
    """Maximum CPU time of a run in seconds."""
    memory_mb: int
    """Maximum address space of a run in MiB."""
    output_characters: int
    """Maximum number of characters of the canonical text of a result."""
    isolation: Literal["kernel", "rlimits"]
    """Kind of the isolation."""
    packages: tuple[str, ...] = ()
    """Names of installed packages that programs may import."""


def configuration(limits: Limits) -> bytes:
    """Return the first message to a warmed process, which configures it.

    Raises IsolationError if the system lacks what the isolation needs.
    """
    program, pivot_root = b"", 0
    if limits.isolation == "kernel":
        if sys.platform != "linux":
            raise _refusal(f"Linux (this is {sys.platform})")
        try:
            program, pivot_root = system_call_filter()
        except SeccompMissingError as error:
            raise _refusal(str(error)) from error
    paths = _package_paths(limits.packages) if limits.packages else []
    fields = {**vars(limits), "filter": program.hex(), "pivot_root": pivot_root, "paths": paths}
    data = json.dumps(fields).encode()
    return len(data).to_bytes(4, "little") + data


def _package_paths(names: Sequence[str]) -> list[str]:
    """Return absolute folders, in the order of `sys.path`: those of installed packages, and those
    in which Python finds the packages `names`, such as folders of `PYTHONPATH`.

    A folder without an `__init__.py` is left out; else any folder inside them could be named.
    """
    known = [os.path.abspath(path) for path in sys.path if path]
    specs = [spec for spec in map(find_spec, names) if spec is not None and spec.origin is not None]
    homes = [home for spec in specs for home in spec.submodule_search_locations or ()]
    named = {os.path.dirname(os.path.abspath(home)) for home in homes}
    kinds = ("site-packages", "dist-packages")
    return [path for path in known if path in named or os.path.basename(path) in kinds]


def _refusal(missing: str) -> IsolationError:
    return IsolationError(
        f"executor: this system cannot isolate programs, missing: {missing}; allow it, or set "
        'isolation="rlimits" for the weaker mode, which is no defence against hostile programs'
    )


class SandboxProcess(Generic[Job]):
    """A warmed process and its jobs, oldest first; it runs one job at a time."""

    def __init__(self, limits: Limits, configuration: bytes, hash_seed: int) -> None:
        """Start the process; `wait` for it before the first job."""
        self.limits = limits
        self.jobs: deque[Job] = deque()
        self._inbox, self._outbox = bytearray(), bytearray()
        self._since = 0.0
        self._socket, theirs = socket.socketpair()
        # Python reads the time zone when it starts, while that of the machine is still visible.
        # A process with several threads, such as those of OpenBLAS, cannot enter a namespace.
        environment = {"PYTHONHASHSEED": str(hash_seed), "TZ": "UTC0", "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if "LD_LIBRARY_PATH" in os.environ:  # some interpreters cannot start without it
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        # The flags are those of -I -S, except that -I would ignore the hash seed.
        flags = ["-P", "-s", "-S", "-B", "-X", "utf8"]
        path = str(Path(__file__).resolve().with_name("fork_server.py"))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *flags, path, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the parent handles an interrupt at the terminal
            )
        # A process that dies at once is reported by `wait`.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(configuration)

    def wait(self) -> None:
        """Wait until the process is warm and isolated; raises IsolationError if that fails."""
        seconds = IMPORT_SECONDS if self.limits.packages else START_SECONDS
        self._socket.settimeout(seconds)
        answer = b""
        try:
            while not answer.endswith(b"\n"):
                part = self._socket.recv(4096)
                if not part:
                    break
                answer += part
        except TimeoutError:
            self.close()
            raise IsolationError(
                f"executor: the sandbox process did not answer within {seconds:g} s; the machine "
                "may be too busy; start the run again"
            ) from None
        except ConnectionResetError:
            answer = b""  # it died; its error output may say why
        if answer != b"\n":
            errors: IO[bytes] | None = self._process.stderr
            self._process.kill()
            spoken = errors.read(4096) if errors and not answer else b""
            text = (answer or spoken or b"the isolated process died at once").decode(
                "utf-8", "replace"
            )
            self.close()
            raise _refusal(text.strip().splitlines()[-1])
        if self._process.stderr:
            self._process.stderr.close()
        self._socket.setblocking(False)

    @property
    def descriptor(self) -> int:
        """File descriptor to poll: always for reading, and for writing while `unsent`."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """True while requests wait for room in the socket."""
        return bool(self._outbox)

    @property
    def seconds_left(self) -> float:
        """Seconds until the oldest job is overdue; infinite without jobs."""
        if not self.jobs:
            return float("inf")
        return self._since + self.limits.wall_seconds + GRACE_SECONDS - time.monotonic()

    def submit(self, job: Job, request: bytes) -> None:
        """Queue a request made by `encoded`; raises LostError."""
        if not self.jobs:
            self._since = time.monotonic()
        self.jobs.append(job)
        self._outbox += request
        self.flush()

    def flush(self) -> None:
        """Send as many bytes as fit into the socket; raises LostError."""
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]
        except BlockingIOError:
            return
        except OSError as error:
            raise LostError(str(error)) from error

    def receive(self) -> list[tuple[Job, bytes]]:
        """Return the finished jobs, each with its reply; raises LostError."""
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LostError(str(error)) from error
        if not data:
            raise LostError("its socket ended")
        self._inbox += data
        done = []
        while len(self._inbox) >= protocol.REPLY.size:
            end = protocol.REPLY.size + protocol.REPLY.unpack_from(self._inbox)[3]
            if len(self._inbox) < end:
                break
            done.append((self.jobs.popleft(), bytes(self._inbox[:end])))
            del self._inbox[:end]
            self._since = time.monotonic()
        return done

    def disown(self) -> None:
        """Release a process that belongs to the parent of this forked process."""
        self._socket.close()

    def close(self) -> None:
        """Kill the process, and with it all processes in its namespaces."""
        self._socket.close()
        self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()


def encoded(call: Call, arguments: str) -> bytes:
    """Return the request for one run; `arguments` is canonical text. Raises UnicodeEncodeError."""
    texts = [text.encode() for text in (call.program, arguments, call.entry)]
    return b"".join([protocol.REQUEST.pack(*map(len, texts)), *texts])


def judged(reply: bytes, limits: Limits) -> Outcome:
    """Return the verdict on a reply: first from the exit status, then from the output."""
    status, flags, seconds, _ = protocol.REPLY.unpack_from(reply)
    data = reply[protocol.REPLY.size :]
    if flags & protocol.TIMED_OUT:
        return failure(
            FailureReason.STALLED, f"longer than {limits.wall_seconds:g} s of wall-clock time"
        )
    if flags & protocol.OVERFLOWED:
        return failure(
            FailureReason.OUTPUT_LIMIT, f"more than {limits.output_characters} characters"
        )
    if os.WIFSIGNALED(status):
        return _killed(os.WTERMSIG(status), seconds, limits)
    if os.WEXITSTATUS(status) != 0:
        return failure(FailureReason.EXITED, f"exit code {os.WEXITSTATUS(status)} without a result")
    if not data:
        return failure(FailureReason.EXITED, "ended without a result")
    size = protocol.FRAME.size
    if len(data) < size:
        return failure(FailureReason.NOT_PLAIN_DATA, "the result pipe holds no frame")
    kind, length = protocol.FRAME.unpack_from(data)
    if length != len(data) - size or kind not in (protocol.VALUE, protocol.FAILURE):
        return failure(
            FailureReason.NOT_PLAIN_DATA, "the result pipe holds something else than one frame"
        )
    try:
        text = data[size:].decode()
        if kind == protocol.FAILURE:
            reason, _, detail = text.partition("\n")
            if reason not in _REPORTED:
                return failure(
                    FailureReason.NOT_PLAIN_DATA, "the result pipe holds an unknown reason"
                )
            return failure(FailureReason(reason), detail)
        # A hostile run may send text that is not canonical.
        most = limits.output_characters
        value = canonical(parse_literal(text, characters=most), characters=most)
        return Outcome(reason=FailureReason.OK, value=value)
    except TooLargeError as error:
        return failure(FailureReason.OUTPUT_LIMIT, str(error))
    except (LiteralError, UnicodeDecodeError) as error:
        return failure(FailureReason.NOT_PLAIN_DATA, str(error))


def _killed(number: int, seconds: float, limits: Limits) -> Outcome:
    if number == signal.SIGSYS and limits.isolation == "kernel":
        return failure(FailureReason.FORBIDDEN, "a system call that isolation refuses")
    if number == signal.SIGXFSZ:
        return failure(FailureReason.FORBIDDEN, "writing to a file")
    spent = number == signal.SIGKILL and seconds >= limits.cpu_seconds
    if spent or number in (signal.SIGPROF, signal.SIGXCPU):
        return failure(FailureReason.TIMEOUT, f"more than {limits.cpu_seconds:g} s of CPU time")
    names = {entry.value: entry.name for entry in signal.Signals}
    return failure(FailureReason.KILLED, names.get(number, f"signal {number}"))
