"""Whole runs on Ray workers, undisturbed and with processes killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.helpers.command_process import LONGEST, SMOKE, finished, metrics, shared_cache, summary
from tests.league.test_league_run import ANCHORS, GAME

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ALONE = ("runtime=ray", "runtime.workers=1")
PAST = (
    *ANCHORS,
    "league.players.default.matchmaking.weights={current: 0, past: 0.9, anchors: 0.1}",
)


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
"""`selfplay` that waits for a file before a step."""


class Command:
    """`selfplay` in its own process, with its child processes."""

    running: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, *arguments: str, cwd: Path, hold: int = 0) -> None:
        """`hold` is a step that begins only after `go`, so that no run ends too early."""
        self.mark = f"selfplay-test-{time.time_ns()}"
        self._go = cwd / self.mark
        held = ["-c", HELD.format(step=hold, go=str(self._go))]
        self.process = subprocess.Popen(
            [sys.executable, *(held if hold else ["-m", "selfplay"]), *arguments],
            cwd=cwd,
            env={**os.environ, "SELFPLAY_CACHE": str(shared_cache()), "MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(self.process)

    def started(self, name: str = "") -> list[int]:
        """Return the living child processes whose command line contains a name."""
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

    def go(self) -> None:
        """Let the held step begin."""
        self._go.touch()

    def end(self) -> str:
        """Wait for the process, check that it succeeded, and return its output."""
        out, err = self.process.communicate(timeout=LONGEST)
        assert self.process.returncode == 0, err
        wait(lambda: not self.started())
        return out + err


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """End the driver and its processes, also after a failed test."""
    yield
    while Command.running:
        Command.running.pop().kill()


def wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + LONGEST
    while not until():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.1)


def step(place: Path, number: int) -> Callable[[], bool]:
    """Return True if a run has reached a step."""
    return lambda: (place / f"episodes/{number:06d}.jsonl").exists()


def assert_alike(place: Path, other: Path, *, counts: bool = True) -> None:
    left_out = ("runtime/",) if counts else ("runtime/", "service/")
    for line, expected in zip(metrics(place), metrics(other), strict=True):
        kept = {key: value for key, value in line.items() if not key.startswith(left_out)}
        assert kept == {k: v for k, v in expected.items() if not k.startswith(left_out)}
    assert summary(place) == summary(other)
    for path in other.glob("episodes/*"):
        assert (place / path.relative_to(other)).read_bytes() == path.read_bytes()


def test_a_league_on_workers_is_the_league_of_one_process(tmp_path: Path) -> None:
    for name, more in (("here", ()), ("there", ALONE)):
        words = Command("train", *GAME, *PAST, f"run.name={name}", *more, cwd=tmp_path).end()
        assert "WARNING" not in words and "ray" not in words.replace("array", "").lower()
    assert_alike(tmp_path / "runs/there", tmp_path / "runs/here")
    record = (tmp_path / "runs/there/episodes/000003.jsonl").read_text().splitlines()
    seatings = [json.loads(line)["episode"]["policy_map"] for line in record]
    assert any(name.startswith("base@") for each in seatings for name in each.values())


def test_a_run_outlives_its_worker(tmp_path: Path) -> None:
    place = tmp_path / "runs/hurt"
    command = Command("train", SMOKE, *ALONE, "run.name=hurt", cwd=tmp_path, hold=3)
    wait(step(place, 1))
    (worker,) = command.started("ray::Worker")
    os.kill(worker, signal.SIGKILL)
    command.go()
    command.end()
    assert_alike(place, finished(), counts=False)
    assert sum(line.get("runtime/worker_deaths", 0) for line in metrics(place)) == 1


def test_a_killed_driver_leaves_nothing_behind_and_can_be_resumed(tmp_path: Path) -> None:
    place = tmp_path / "runs/hurt"
    command = Command("train", SMOKE, *ALONE, "run.name=hurt", cwd=tmp_path, hold=3)
    wait(step(place, 2))
    command.process.kill()
    command.process.communicate()
    wait(lambda: not command.started())
    Command("train", "resume=runs/hurt", cwd=tmp_path).end()
    assert_alike(place, finished())
