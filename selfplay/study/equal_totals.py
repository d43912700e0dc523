"""Records of runs, each ended where it has spent as much as the cheapest run spent in all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from selfplay.errors import ConfigError, nearest

SLACK = 0.01
"""Fraction by which a sum may be above the smallest total, so that runs of nearly equal cost keep
their last step."""
Rows = Mapping[int, Mapping[str, float]]
"""Step to metrics, in the order of the steps."""


@dataclass(frozen=True, kw_only=True)
class EqualTotal:
    """A cost, such as sampled tokens, at whose sum over the steps each record is ended.

    The measure `metrics` makes it for `compare`, from the option --equal, and reads it.
    """

    metric: str
    """Recorded or derived metric of a step, such as engine/base/completion_tokens."""
    most: float
    """Smallest total of the compared runs."""

    def ended(self, rows: Rows) -> Rows:
        """Return the rows up to the last step at which the sum is at most `most`, with `SLACK`.

        Raises ConfigError if the first step costs more.
        """
        kept, spent = {}, 0.0
        for step, row in rows.items():
            spent += _cost(row, self.metric)
            if spent > self.most * (1 + SLACK):
                break
            kept[step] = row
        if not kept:
            raise ConfigError(
                f"--equal {self.metric}: the first step costs {spent:,.0f}, more than the cheapest "
                f"of the compared runs in all ({self.most:,.0f}); leave that run out"
            )
        return kept

    def note(self) -> str:
        """Return the text that a study shows about the steps that are left."""
        return (
            f"each record ends at the last step at which its sum of {self.metric} is at most "
            f"{SLACK:.0%} above {self.most:,.0f}, the smallest total of the compared runs"
        )


def total(rows: Rows, metric: str) -> float:
    """Return the sum of a metric over all steps; a step without it adds 0.

    Raises ConfigError if no step has the metric, if it is negative at a step, or if the sum is 0.
    """
    recorded = list(dict.fromkeys(name for row in rows.values() for name in row))
    if metric not in recorded:
        raise ConfigError(f"--equal {metric}: no such metric; {nearest(metric, recorded)}")
    costs = [_cost(row, metric) for row in rows.values()]
    if min(costs) < 0:
        raise ConfigError(f"--equal {metric}: it is negative at a step, so it is no cost")
    if not any(costs):
        raise ConfigError(
            f"--equal {metric}: it is 0 at every step, so there is nothing to equalise"
        )
    return math.fsum(costs)


def _cost(row: Mapping[str, float], metric: str) -> float:
    """Return the value of a metric at a step; 0 if the step has no finite value of it."""
    value = row.get(metric, 0.0)
    return value if math.isfinite(value) else 0.0
