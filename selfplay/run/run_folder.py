"""Names of the files of a run, the test if a folder is a run folder, and its checkpoints."""

import re
from contextlib import suppress
from itertools import islice
from pathlib import Path

from selfplay.errors import RunError, closest

CONFIG = "config.yaml"
"""File with the resolved config; it makes a folder a run folder."""
METRICS = "metrics.jsonl"
"""File with the metrics of each step, a line each."""
SUMMARY = "summary.json"
"""File that training writes when it ends."""
REPORT = "report.html"
"""Page that `selfplay report` writes."""
EPISODES = "episodes"
"""Folder with the episodes of recorded steps."""
STUDIES = "studies"
"""Folder with the results of studies."""
CHECKPOINTS = "checkpoints"
"""Folder with the checkpoints, a folder each."""
POLICIES = "policies"
"""Folder of a checkpoint with the weights of each policy."""
LEARNERS = "learners.pt"
"""File of a checkpoint with the state of the optimizers."""
STATE = "state.json"
"""File of a checkpoint with the state of everything else, such as curriculum and league."""
RUNS = Path("runs")
"""Default folder of runs."""
MOST_ENTRIES = 1000
"""Largest number of entries of a folder that an error looks through for a run."""


def is_run(folder: Path) -> bool:
    """Return True if a folder has the config of a run."""
    return (folder / CONFIG).is_file()


def check_run(folder: Path) -> None:
    """Raise RunError if `folder` is not a run folder; the line names a run that may be meant."""
    if is_run(folder):
        return
    problem = f"{folder} is not a run folder ({CONFIG} is missing)"
    if inside := _runs_in(folder):
        raise RunError(f"{problem}, but a folder of runs; name one, such as {inside[0]}")
    if is_run(default := RUNS / folder):
        raise RunError(f"{problem}; did you mean {default}?")
    nearby = _runs_in(folder.parent) or _runs_in(RUNS)
    close = closest(folder.name, [run.name for run in nearby])
    if close is not None:
        raise RunError(f"{problem}; did you mean {nearby[0].parent / close}?")
    example = f", such as {nearby[0]}" if nearby else ""
    raise RunError(f"{problem}; name one that training made{example}")


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the folders in a folder that have names of checkpoints, the newest first.

    These folders may be damaged or empty. Only names that the writer of checkpoints gives count.
    """
    found = [path for path in folder.glob("[0-9]*") if _numbered(path)]
    return sorted(found, key=step_of, reverse=True)


def step_of(place: Path) -> int:
    """Return the step of a checkpoint."""
    return int(place.name)


def _numbered(path: Path) -> bool:
    return re.fullmatch(r"[0-9]{6}|[1-9][0-9]{6,17}", path.name) is not None and path.is_dir()


def _runs_in(folder: Path) -> list[Path]:
    """Return the run folders among the first `MOST_ENTRIES` entries of a folder, in order."""
    with suppress(OSError):
        entries = islice(folder.iterdir(), MOST_ENTRIES)
        return sorted(path for path in entries if path.name.isprintable() and is_run(path))
    return []
