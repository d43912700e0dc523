"""The executor, which runs untrusted programs in isolated processes and returns their results."""

import functools
import os
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from hashlib import blake2b
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Literal, Self

from selfplay.errors import ConfigError
from selfplay.sandbox.dispatcher import Dispatcher
from selfplay.sandbox.literals import LiteralError, TooLargeError, canonical, parse_arguments
from selfplay.sandbox.process import Limits
from selfplay.sandbox.types import (
    CIRCUMSTANTIAL,
    OUT_OF_TIME,
    Call,
    FailureReason,
    Outcome,
    agreed,
    failure,
)

MAX_PROGRAM_CHARACTERS = 1_000_000
MAX_ARGUMENT_CHARACTERS = 100_000
_MAX_CACHED_CHARACTERS = 1_000  # longer values are not cached
_PATIENCE = 10.0  # wall-clock seconds per second of CPU time; also the smallest default limit
CACHED = "cached"


class Executor:
    """A pool of warmed processes, each of which forks a fresh, isolated process per run.

    Processes start with the first `run`. Copies, by `copy` or `pickle`, are executors of the same
    configuration with nothing started. Threads may share one.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        wall_seconds: float | None = None,
        cpu_seconds: float = 1.0,
        memory_mb: int = 256,
        output_characters: int = 10_000,
        isolation: Literal["kernel", "rlimits"] = "kernel",
        cache_size: int = 65_536,
        packages: Sequence[str] = (),
    ) -> None:
        """Configure; nothing starts yet.

        Args:
            workers: Number of calls that run at the same time; each worker has two processes, one
                for each hash seed.
            wall_seconds: Maximum duration of a run; if None, 10 times `cpu_seconds` and at least
                10. It ends programs that sleep. With a smaller limit, verdicts depend on how busy
                the machine is.
            cpu_seconds: Maximum CPU time of a run in seconds.
            memory_mb: Maximum address space of a run in MiB; the interpreter needs about 30.
            output_characters: Maximum length of the canonical text of a result.
            isolation: "kernel" for namespaces, a root without files, and a filter of system calls;
                "rlimits" for resource limits alone, which do not hold back a hostile program.
                Refused if the user is root, because a program could then end every process of
                the machine.
            cache_size: Maximum number of cached results; 0: no cache.
            packages: Names of installed packages that programs may import. They are imported once
                per process, and their folders and those of the packages that they load are
                readable. Modules that they load keep the real clocks.
        Raises:
            ConfigError: For an argument that is out of its range, or a package that is missing.
        """
        self._configuration: dict[str, Any] = {
            "workers": workers,
            "wall_seconds": wall_seconds,
            "cpu_seconds": cpu_seconds,
            "memory_mb": memory_mb,
            "output_characters": output_characters,
            "isolation": isolation,
            "cache_size": cache_size,
            "packages": tuple(packages),
        }
        for name, least in (("workers", 1), ("memory_mb", 64), ("output_characters", 1)):
            if self._configuration[name] < least:
                raise ConfigError(f"executor.{name}: must be at least {least}")
        for name in ("wall_seconds", "cpu_seconds"):
            if self._configuration[name] is not None and not 0 < self._configuration[name] < 1e6:
                raise ConfigError(f"executor.{name}: must be a positive number of seconds")
        if isolation not in ("kernel", "rlimits"):
            raise ConfigError(f"executor.isolation: 'kernel' or 'rlimits', not {isolation!r}")
        for name in packages:
            if not name.isidentifier() or find_spec(name) is None:
                raise ConfigError(f"executor.packages: no package {name!r} is installed")
        if isolation == "rlimits" and os.geteuid() == 0:
            raise ConfigError(
                "executor.isolation: 'rlimits' is refused to root, because a program could end "
                "every process of the machine; use 'kernel', or run as another user"
            )
        self._workers = workers
        self._cache_size = cache_size
        self._limits = Limits(
            wall_seconds=_PATIENCE * max(1.0, cpu_seconds)
            if wall_seconds is None
            else wall_seconds,
            cpu_seconds=cpu_seconds,
            memory_mb=memory_mb,
            output_characters=output_characters,
            isolation=isolation,
            packages=tuple(packages),
        )
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, Outcome] = OrderedDict()
        self._dispatcher: Dispatcher | None = None
        self._finalizer: weakref.finalize[..., Executor] | None = None
        self.counts: Counter[str] = Counter()

    def run(
        self, calls: Sequence[Call], *, runs: int = 1, timeouts: int | None = None
    ) -> list[Outcome]:
        """Return the outcome of each call, in order; no program can make this raise.

        Args:
            calls: The calls; equal ones run once. An outcome depends only on the call, `runs` and
                the configuration, unless the machine has too little memory or time (`STALLED`,
                `MEMORY`, `KILLED`).
            runs: Number of fresh processes per call, with different hash seeds, clocks and random
                numbers. If their results differ, the outcome is `NONDETERMINISTIC`.
            timeouts: Number of `TIMEOUT` or `STALLED` outcomes of a program after which its later
                calls are `NOT_RUN`; calls of a program run in their order. None: all calls run. Use
                it if all calls of a program must succeed.

        Raises `IsolationError` if the system cannot isolate programs as configured, and ValueError
        for `runs` or `timeouts` below 1.
        """
        if runs < 1 or (timeouts is not None and timeouts < 1):
            raise ValueError(f"runs and timeouts must be at least 1, not {runs} and {timeouts}")
        if timeouts is None:
            return self._run(calls, runs)
        outcomes: list[Outcome] = [_NOT_RUN] * len(calls)
        left = dict.fromkeys((call.program for call in calls), timeouts)
        waiting: dict[str, deque[int]] = {program: deque() for program in left}
        for index, call in enumerate(calls):
            waiting[call.program].append(index)
        while wave := [
            queue.popleft()
            for program, queue in waiting.items()
            for _ in range(min(left[program], len(queue)))
        ]:
            for index, outcome in zip(
                wave, self._run([calls[index] for index in wave], runs), strict=True
            ):
                outcomes[index] = outcome
                left[calls[index].program] -= outcome.reason in OUT_OF_TIME
        skipped = sum(len(queue) for queue in waiting.values())
        if skipped:
            with self._lock:
                self.counts[FailureReason.NOT_RUN.value] += skipped
        return outcomes

    def _run(self, calls: Sequence[Call], runs: int) -> list[Outcome]:
        outcomes: dict[bytes, Outcome] = {}
        todo: dict[bytes, tuple[Call, str]] = {}
        keys = [_key(call, runs) for call in calls]
        cached = 0
        for key, call in zip(keys, calls, strict=True):
            if key in outcomes or key in todo:
                cached += 1
                continue
            remembered = self._recall(key)
            if remembered is not None:
                cached += 1
                outcomes[key] = remembered
                continue
            vetted = _vetted(call)
            if isinstance(vetted, Outcome):
                outcomes[key] = vetted
            else:
                todo[key] = (call, vetted)
        if todo:
            rows = self._started().run(list(todo.values()), runs)
            for key, row in zip(todo, rows, strict=True):
                outcomes[key] = agreed(row)
                self._remember(key, outcomes[key])
        results = [outcomes[key] for key in keys]
        with self._lock:
            self.counts.update(outcome.reason.value for outcome in results)
            if cached:
                self.counts[CACHED] += cached
        return results

    def drain_metrics(self) -> dict[str, int]:
        """Return the numbers of outcomes since the last call, by reason; `cached` counts those that
        were not computed again. Run metrics have them as `service/<name>/<reason>`."""
        with self._lock:
            drained = dict(self.counts)
            self.counts.clear()
        return drained

    def close(self) -> None:
        """End all processes; a later `run` starts them again."""
        with self._lock:
            finalizer, self._finalizer, self._dispatcher = self._finalizer, None, None
        if finalizer is not None:
            finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._configuration), ()

    def _started(self) -> Dispatcher:
        with self._lock:
            if self._dispatcher is None or not self._dispatcher.usable:
                if self._finalizer is not None:
                    self._finalizer()
                self._dispatcher = Dispatcher(self._limits, self._workers)
                # Called when this object is deleted, or at the interpreter's exit.
                self._finalizer = weakref.finalize(self, self._dispatcher.close)
            return self._dispatcher

    def _recall(self, key: bytes) -> Outcome | None:
        with self._lock:
            outcome = self._cache.get(key)
            if outcome is not None:
                self._cache.move_to_end(key)
            return outcome

    def _remember(self, key: bytes, outcome: Outcome) -> None:
        if outcome.reason in CIRCUMSTANTIAL or len(outcome.value or "") > _MAX_CACHED_CHARACTERS:
            return
        with self._lock:
            self._cache[key] = outcome
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)


_NOT_RUN = failure(FailureReason.NOT_RUN, "earlier calls of this program ran out of time")


def _key(call: Call, runs: int) -> bytes:
    digest = blake2b(digest_size=16)
    for text in (call.program, call.arguments, call.entry, str(runs)):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _vetted(call: Call) -> str | Outcome:
    """Return the call's arguments as canonical text, or an outcome that needs no process."""
    if len(call.program) > MAX_PROGRAM_CHARACTERS:
        return failure(FailureReason.INPUT_LIMIT, f"a program of {len(call.program)} characters")
    try:
        (call.program + call.entry).encode()
    except UnicodeEncodeError:
        return failure(
            FailureReason.SYNTAX, "the program holds a character that is no text (a surrogate)"
        )
    try:
        values = parse_arguments(call.arguments, characters=MAX_ARGUMENT_CHARACTERS)
        return ", ".join(canonical(value) for value in values)
    except TooLargeError as error:
        return failure(FailureReason.INPUT_LIMIT, str(error))
    except LiteralError as error:
        return failure(FailureReason.BAD_ARGUMENTS, str(error))
