"""Whole runs in this process, with batches that a thread samples ahead."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from selfplay.experiment.experiment import Experiment
from selfplay.learner import checkpoint
from selfplay.run.directory import Run
from selfplay.run.progress import Progress
from selfplay.train import Trainer
from tests.helpers.command_process import LONGEST, metrics

IDLE = ("learner.lr=0", "objective.kl=0")
"""Overrides that keep the weights constant, so that all versions of them sample alike."""


def train(experiment: Experiment, run: Run) -> str:
    console = Console(file=io.StringIO(), width=400, _environ={})
    try:
        with Progress(experiment.settings.steps, "run", console) as progress:
            Trainer(experiment, run, progress).run()
    finally:
        experiment.close()
        for each in threading.enumerate():
            if each.name == "batches":
                each.join(LONGEST)
                assert not each.is_alive()
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def trained(place: Path, composed: dict[str, Any]) -> Run:
    run = Run.create(place, composed)
    train(Experiment(composed).load(), run)
    return run


def resumed(run: Run, composed: dict[str, Any]) -> None:
    place, faults = checkpoint.latest(run.folder / "checkpoints")
    assert place is not None and not faults
    again = Experiment(composed).load(place)
    run.rewind(again.step)
    train(again, run)


def untimed_metrics(run: Run) -> list[dict[str, Any]]:
    """Return the metrics that do not depend on the speed of the threads."""
    timed = ("staleness", "seconds", "engine/")
    return [
        {k: v for k, v in line.items() if not any(h in k for h in timed)}
        for line in metrics(run.folder)
    ]


def assert_metrics_alike(run: Run, other: Run) -> None:
    """Assert that the metrics of two runs are equal up to rounding.

    Rounding differs because steps that overlap share the batches of the engine.
    """
    found, wanted = untimed_metrics(run), untimed_metrics(other)
    assert len(found) == len(wanted)
    for line, expected in zip(found, wanted, strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-6)
