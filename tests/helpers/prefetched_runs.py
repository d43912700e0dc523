"""Whole runs in this process whose batches are sampled ahead in a thread."""

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
"""The weights stay what they were, so that it does not matter which of them sampled."""


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


def told(run: Run) -> list[dict[str, Any]]:
    """The metrics but for what depends on who was faster."""
    hasty = ("staleness", "seconds", "engine/")
    return [
        {k: v for k, v in line.items() if not any(h in k for h in hasty)}
        for line in metrics(run.folder)
    ]


def assert_told_alike(run: Run, other: Run) -> None:
    """The metrics are equal up to rounding: steps that overlap share the engine's batches."""
    found, wanted = told(run), told(other)
    assert len(found) == len(wanted)
    for line, expected in zip(found, wanted, strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-6)
