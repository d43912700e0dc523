"""Metrics that runs recorded, with a 0 for each outcome at the steps at which it did not occur.

A run writes the metric of an outcome, such as a verdict of a role, from the step on at which the
outcome first occurs. The earlier steps count too: without them, the mean of a rare outcome would be
too large.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from selfplay.run.metrics import Outcomes
from selfplay.run.record_reader import read_metrics
from selfplay.run.run_folder import METRICS

PLAYED = "episodes/count"
"""Metric of every step that played episodes of training."""
ROLE = "role/"
"""Beginning of the metrics of roles."""
OF_GAMES = (ROLE, "episodes/")
"""Beginnings of the metrics whose outcomes can occur in every run with the same games."""


def recorded_metrics(run: Path, *, outcomes: Iterable[str] = ()) -> dict[int, dict[str, float]]:
    """Return step to metrics of metrics.jsonl, see `read_metrics`.

    An outcome that a step lacks is 0 there if it could occur: an outcome of a role where the role
    took a turn, and any other one where episodes of training were played.

    Args:
        run: Run folder.
        outcomes: Further outcomes that could have occurred, such as those of other runs.
    """
    rows = read_metrics(run / METRICS)
    known = _known([*outcomes, *chain.from_iterable(rows.values())])
    return {step: row | _zeros(row, known) for step, row in rows.items()}


def outcomes_of(runs: Sequence[Path]) -> list[str]:
    """Return the outcomes of roles and of episodes that any of these runs recorded."""
    names = [name for run in runs for row in read_metrics(run / METRICS).values() for name in row]
    return [name for name in _known(names).state_dict() if name.startswith(OF_GAMES)]


def _known(names: Iterable[str]) -> Outcomes:
    """Return a memory of those of the metrics that are outcomes."""
    known = Outcomes()
    known.complete(dict.fromkeys(names, 0.0))
    return known


def _zeros(row: Mapping[str, float], known: Outcomes) -> dict[str, float]:
    """Return a 0 for each known outcome that a step lacks and that could occur there."""
    return {
        name: value
        for name, value in known.complete(row).items()
        if name not in row and (PLAYED in row or name.startswith(ROLE))
    }
