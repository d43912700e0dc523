"""Tests of `scripts/chaos.py`: the processes of a run that it kills, and the time of a kill."""

import os
import random
import subprocess
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.scripts import script

chaos = script("chaos")
TITLES = ("ray::LearnerWorker.optimize", "ray::LearnerWorker", "ray::RolloutWorker", "ray::IDLE")


class Run:
    """A run folder, and processes with the titles of a run on Ray."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, f"test-{time.time_ns()}"
        env = {**os.environ, chaos.MARK: self.mark}
        self.processes = [
            subprocess.Popen([title, "60"], executable="/bin/sleep", env=env) for title in TITLES
        ]

    def ended(self) -> list[str]:
        """Return the titles of the processes that were killed."""
        time.sleep(0.2)
        found = zip(TITLES, self.processes, strict=True)
        return [title for title, process in found if process.poll() is not None]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_ranks_and_workers_are_killed_only_while_the_run_trains(run: Run) -> None:
    kill = chaos.Kill("rank", 0.0, random.Random(0), run.folder)
    kill.tick(run.mark)
    assert not kill.name and set(chaos.living(run.mark, run.folder)) == {"other"}
    (run.folder / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    found = chaos.living(run.mark, run.folder)
    assert {kind: list(names) for kind, names in found.items()} == {
        "rank": ["ray::LearnerWorker"],
        "worker": ["ray::RolloutWorker"],
        "other": ["ray::IDLE"],
    }
    assert len(found["rank"]["ray::LearnerWorker"]) == 2
    (run.folder / "summary.json").touch()
    kill.tick(run.mark)
    assert not kill.name and not run.ended()


def test_one_process_of_the_wanted_kind_is_killed_after_the_delay(run: Run) -> None:
    (run.folder / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    kill, lives = chaos.Kill("rank", 0.2, random.Random(0), run.folder), chaos.Lives(run.folder)
    kill.tick(run.mark)
    lives.tick(run.mark)
    assert not run.ended()
    for _ in range(2):
        kill.tick(run.mark)
    assert kill.name == "ray::LearnerWorker" and kill.message.endswith("in step 2")
    (title,) = run.ended()
    assert title.startswith("ray::LearnerWorker")
    lives.tick(run.mark)
    assert lives.seconds["rank"] > 0.2 and "driver" not in lives.seconds


def test_an_unknown_kind_is_one_line() -> None:
    assert chaos.victims("rank,other") == ["rank", "other"]
    line = r"^engine: choose from rank, worker, driver, other$"
    with pytest.raises(ArgumentTypeError, match=line):
        chaos.victims("engine")
