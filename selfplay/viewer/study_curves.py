"""Studies as curves over the checkpoints, in addition to the curves of the metrics.

A numeric column of a table with the column `step` is one curve. Its name is `study/MEASURE/COLUMN`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from selfplay.run.run_folder import STUDIES
from selfplay.viewer.metric_columns import Curve, stamp_of
from selfplay.viewer.stored_studies import read_studies

PREFIX = "study/"
"""Beginning of the names of these curves."""
MOST_CURVES = 500
"""Largest number of curves of a run."""


class StudyCurves:
    """The curves of the studies of runs. Files are read again only after a change."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[str, Mapping[str, Curve]]] = {}

    def of(self, run: Path) -> Mapping[str, Curve]:
        """Return the curves of a run by name. Damaged files are left out: their page shows why."""
        stamp = stamp_of(run / STUDIES)  # the folder changes whenever a file is replaced
        if self._kept.get(run, ("", {}))[0] != stamp:
            self._kept[run] = (stamp, {} if stamp == "none" else _read(run))
        return self._kept[run][1]

    def steps(self, run: Path) -> set[int]:
        """Return the steps whose checkpoints a study measured."""
        return {step for curve in self.of(run).values() for step in curve.steps.tolist()}


def _read(run: Path) -> Mapping[str, Curve]:
    found: dict[str, Curve] = {}
    for listed in read_studies(run):
        tables = listed.study.tables if listed.study else []
        for table in tables:
            for chart in table.charts():
                (series,) = chart.series
                found.setdefault(
                    f"{PREFIX}{listed.name}/{series.label}",
                    Curve(
                        steps=np.array(series.steps, np.int64),
                        values=np.array(series.values, np.float64),
                    ),
                )
    return dict(list(found.items())[:MOST_CURVES])
