"""Surroundings of a run: the clocks, the randomness and the process number that it can read.

The two runs of a call must agree. Without replaced surroundings they could agree by chance, since
two runs in one second see the same date. So each lane of warmed processes has fixed surroundings
of its own: a clock that begins at the lane's date in every run, a random generator with the lane's
seed, and a hash seed. A result that depends on them differs between the lanes on every day, and a
single run gives the same result on every machine.

Loaded by path inside the warmed process, so it imports nothing but the standard library.

Limits. The clocks are replaced in Python, because the kernel cannot give a process another date. A
program can still find the real clock: by `ctypes`, a second import of `time`, a subinterpreter, or
from the time at which the sandbox's root folder was made. Facts of the machine, such as the
number of processors, are the same in both lanes. A single bit that depends on the hash seed is the
same in both lanes with probability 1/2, and a program that depends on such a bit is never detected.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

_BILLION = 1_000_000_000
# Seconds since 1970: Thursday 2021-03-04 05:06:07 and Tuesday 2032-10-19 00:05:00, UTC. They differ
# in every field and modulo every number up to 16. The other clocks count from another zero.
_DATES = (1_614_834_367, 1_981_757_100)
_UPTIMES = (86_413, 1_000_002)
# Seeds of the random generators. The first coin, die and shuffle differ between the two.
_SEEDS = (1, 7397)
_CLOCKS = {
    "time": _DATES,
    "monotonic": _UPTIMES,
    "perf_counter": _UPTIMES,
    "process_time": (3, 10),
    "thread_time": (3, 10),
}
_REAL = {name: getattr(time, f"{name}_ns") for name in _CLOCKS}
_DATE_CLOCKS = {"CLOCK_REALTIME", "CLOCK_TAI", "CLOCK_REALTIME_COARSE"}
_WORK_CLOCKS = {"CLOCK_PROCESS_CPUTIME_ID", "CLOCK_THREAD_CPUTIME_ID"}


class Surroundings:
    """The clocks and the random generator of one lane."""

    def __init__(self, seed: int) -> None:
        """`seed`: the hash seed of the lane."""
        self._lane = seed % 2
        self._shift = dict.fromkeys(_CLOCKS, 0)
        # Moves what is allocated from now on, so that addresses differ between the lanes even
        # where the kernel does not randomize them.
        self._ballast = [bytearray(3_000_017 * self._lane)]
        self._ballast += [bytearray(n) for n in range(16, 512, 16) for _ in range(3 * self._lane)]

    def replace(self) -> None:
        """Install the lane's clocks and random generator before other modules import them."""
        # These read the kernel's clock or randomness. Python's own versions use the replaced ones.
        for name in ("_datetime", "_zoneinfo", "_uuid"):
            sys.modules[name] = None  # type: ignore[assignment]
        self._replace_clocks()
        self._replace_chance()

    def begin(self) -> None:
        """Set all clocks to the lane's start; called in every run before the program."""
        for name, beginnings in _CLOCKS.items():
            self._shift[name] = beginnings[self._lane] * _BILLION - _REAL[name]()

    def _replace_clocks(self) -> None:
        for name in _CLOCKS:
            whole, parts = self._clock(name)
            _put(time, f"{name}_ns", whole)
            _put(time, name, parts)
        now, real = time.time, time.clock_gettime_ns
        clocks = {
            getattr(time, name): "time" if name in _DATE_CLOCKS else "process_time"
            for name in _DATE_CLOCKS | _WORK_CLOCKS
            if hasattr(time, name)
        }

        def nanoseconds(clock: int) -> int:
            return real(clock) + self._shift[clocks.get(clock, "monotonic")]

        _put(time, "clock_gettime_ns", nanoseconds)
        _put(time, "clock_gettime", lambda clock: nanoseconds(clock) / _BILLION)
        for name in ("gmtime", "localtime", "ctime"):
            _put(time, name, _of_seconds(getattr(time, name), now))
        local = time.localtime
        for name, given in (("asctime", 0), ("strftime", 1)):
            _put(time, name, _of_fields(getattr(time, name), given, local))

    def _clock(self, name: str) -> tuple[Callable[[], int], Callable[[], float]]:
        real, shift = _REAL[name], self._shift

        def nanoseconds() -> int:
            return real() + shift[name]

        def seconds() -> float:
            return (real() + shift[name]) / _BILLION

        return nanoseconds, seconds

    def _replace_chance(self) -> None:
        import random  # imported here, because the caller prevents its new seed in every fork

        chance = random.Random(_SEEDS[self._lane])
        plain = random.Random.seed

        def urandom(size: int) -> bytes:
            return chance.randbytes(size)

        def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
            plain(self, int.from_bytes(chance.randbytes(16)) if a is None else a, version)

        posix = sys.modules["posix"]
        for module in (os, posix):
            _put(module, "urandom", urandom)
            if hasattr(module, "getrandom"):
                _put(module, "getrandom", lambda size, flags=0: chance.randbytes(size))
        random._urandom = urandom  # type: ignore[attr-defined]
        random.Random.seed = seed  # type: ignore[method-assign]
        random.seed = random._inst.seed
        random.seed(_SEEDS[self._lane])
        sys.modules["_random"] = None  # type: ignore[assignment]


def _put(module: Any, name: str, function: Callable[..., Any]) -> None:
    function.__name__ = function.__qualname__ = name
    setattr(module, name, function)


def _of_seconds(real: Callable[..., Any], now: Callable[[], float]) -> Callable[..., Any]:
    def of(seconds: float | None = None, /) -> Any:
        return real(now() if seconds is None else seconds)

    return of


def _of_fields(
    real: Callable[..., Any], given: int, local: Callable[[], Any]
) -> Callable[..., Any]:
    def of(*values: Any) -> Any:
        return real(*values) if len(values) != given else real(*values, local())

    return of
