"""Metrics by task type that repeat the metric of the whole evaluation. Pages leave them out."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any


def repeated(columns: Mapping[str, Any]) -> set[str]:
    """Return the metrics by task type of evaluations that have a single type of task.

    Such a metric, `evaluation/NAME/TYPE/METRIC`, has the values of `evaluation/NAME/METRIC`.

    Args:
        columns: Metric to its values, which are compared with `==`.
    """
    whole: dict[str, str] = {}
    types: dict[str, set[str]] = defaultdict(set)
    for name in columns:
        section, *rest = name.split("/")
        if section != "evaluation" or len(rest) < 3:
            continue
        same = f"{section}/{rest[0]}/{rest[-1]}"
        if same in columns and rest[1] != "versus":  # the results against an opponent
            whole[name] = same
            types[rest[0]].add("/".join(rest[1:-1]))
    return {
        name
        for name, same in whole.items()
        if len(types[name.split("/")[1]]) == 1 and columns[name] == columns[same]
    }


def finite_columns(rows: Mapping[int, Mapping[str, float | None]]) -> dict[str, dict[int, float]]:
    """Return each metric of `rows`, step to metrics, as its finite values by step."""
    columns: dict[str, dict[int, float]] = {}
    for step, row in rows.items():
        for name, value in row.items():
            column = columns.setdefault(name, {})
            if value is not None and math.isfinite(value):
                column[step] = value
    return columns
