"""Episodes that a run recorded during training."""

from pathlib import Path

from selfplay.errors import RunError
from selfplay.run.directory import Run
from selfplay.run.record_reader import episodes_of, recorded_steps
from selfplay.types import Episode

PROPOSED = "valid_proposal"
"""Metric of an episode that proposes a task: 1 for a valid proposal, 0 for an invalid one."""


def recorded_episodes(
    run: Path, *, required: bool = True, until: int | None = None
) -> list[tuple[int, list[Episode]]]:
    """Return (step, its episodes) in order, up to step `until` where it is not None.

    Raises RunError if the run recorded no episodes but they are required.
    """
    Run.open(run)
    steps = [step for step in recorded_steps(run) if until is None or step <= until]
    if not steps and required:
        raise RunError(
            f"run {run} recorded no episodes; train one with run.episodes_every=1 (or more)"
        )
    return [(step, [record.episode for record in episodes_of(run, step)]) for step in steps]
