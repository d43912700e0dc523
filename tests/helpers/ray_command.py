"""Runs of the command line on Ray workers, with their child processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from tests.helpers.command_process import LONGEST, metrics, shared_cache, summary

HELD = """
import sys, time
from pathlib import Path
from selfplay.cli.main import main
from selfplay.experiment.experiment import Experiment

begin = Experiment.begin_step

def held(self, step):
    while step == {step} and not Path({go!r}).exists():
        time.sleep(0.02)
    begin(self, step)

Experiment.begin_step = held
sys.exit(main(sys.argv[1:]))
"""
"""Program that runs `selfplay` and waits for a file before a step."""


class Command:
    """`selfplay` in its own process, with its child processes."""

    running: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, *arguments: str, cwd: Path, hold: int = 0) -> None:
        """Start the command. Step `hold` begins only after `go`, so that no run ends too early."""
        self.mark = f"selfplay-test-{time.time_ns()}"
        self._go = cwd / self.mark
        held = ["-c", HELD.format(step=hold, go=str(self._go))]
        self.process = subprocess.Popen(
            [sys.executable, *(held if hold else ["-m", "selfplay"]), *arguments],
            cwd=cwd,
            env={
                **os.environ,
                "SELFPLAY_CACHE": str(shared_cache()),
                "MARK": self.mark,
                "PYTHONFAULTHANDLER": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(self.process)

    def started(self, name: str = "") -> list[int]:
        """Return the ids of living child processes whose command line contains a name."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                ours = self.mark.encode() in (place / "environ").read_bytes()
                words = (place / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if ours and words and name in words and int(place.name) != self.process.pid:
                found.append(int(place.name))
        return found

    def _stacks(self) -> str:
        """End the process and its Ray workers; return the stacks of their threads."""
        logs = {}
        for worker in self.started("ray::"):
            with suppress(OSError):  # it has just ended
                logs[worker] = Path(f"/proc/{worker}/fd/2").readlink()
                os.kill(worker, signal.SIGABRT)
        self.process.send_signal(signal.SIGABRT)
        _, err = self.process.communicate(timeout=60)
        wait(lambda: not any(worker in self.started() for worker in logs), longest=60)
        texts = {
            worker: log.read_text(errors="replace")
            for worker, log in logs.items()
            if log.is_file()  # a pipe, before Ray redirects it, cannot be read
        }
        return (
            "\n".join(f"process {worker}:\n{text[-8000:]}" for worker, text in texts.items()) + err
        )

    def go(self) -> None:
        """Let the held step begin."""
        self._go.touch()

    def end(self) -> str:
        """Wait for the process, check that it succeeded, and return its output."""
        try:
            out, err = self.process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the command has not ended after {LONGEST} s\n{self._stacks()}")
        assert self.process.returncode == 0, err
        wait(lambda: not self.started())
        return out + err


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Kill all commands after each test, also after a failed one."""
    yield
    while Command.running:
        Command.running.pop().kill()


def wait(until: Callable[[], object], longest: float = LONGEST) -> None:
    end = time.monotonic() + longest
    while not until():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.1)


def step(place: Path, number: int) -> Callable[[], bool]:
    """Return a function that is True once a run has recorded a step."""
    return lambda: (place / f"episodes/{number:06d}.jsonl").exists()


def learned(line: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that must be equal for any number of ranks."""
    left_out = ("seconds", "runtime/", "service/", "policy/base/computed_tokens")
    return {key: value for key, value in line.items() if not key.startswith(left_out)}


def assert_alike(place: Path, other: Path, *, counts: bool = True) -> None:
    left_out = ("runtime/",) if counts else ("runtime/", "service/")
    for line, expected in zip(metrics(place), metrics(other), strict=True):
        kept = {key: value for key, value in line.items() if not key.startswith(left_out)}
        assert kept == {k: v for k, v in expected.items() if not k.startswith(left_out)}
    assert summary(place) == summary(other)
    for path in other.glob("episodes/*"):
        assert (place / path.relative_to(other)).read_bytes() == path.read_bytes()
