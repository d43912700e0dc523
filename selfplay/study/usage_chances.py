"""Probabilities of recorded actions at each view, with intervals over episodes."""

from collections import Counter
from functools import lru_cache

import numpy as np

from selfplay.study.stats.bootstrap import Estimate
from selfplay.study.stats.proportions import clopper_pearson, effective_trials
from selfplay.study.stats.usage import UsageTable

INVALID = "no valid action"
"""Name of actions that did not parse, and of illegal moves."""


class ViewChances:
    """Probabilities of the actions of one table. Tables, pictures and the JSON read them.

    The uses are counted by view once, so that a table with many views takes little time.
    """

    def __init__(self, table: UsageTable, whole: UsageTable | None = None) -> None:
        """Count the uses of each view.

        Args:
            table: Table of the actions.
            whole: Table of the texts, if the actions are words of these texts.
        """
        self._lines = table.lines
        self._trials: dict[str, Counter[int]] = {}
        for (view, _), lines in (whole or table).lines.items():
            self._trials.setdefault(view, Counter()).update(lines)

    def uses(self, view: str) -> int:
        """Return the number of times that the view was seen."""
        return self._trials[view].total() if view in self._trials else 0

    def of(self, view: str, action: str | None) -> Estimate:
        """Return the probability of an action at a view, with its interval over episodes.

        Uses in the same episode depend on each other, so the interval is that of Clopper and
        Pearson at the effective number of uses.
        """
        trials = self._trials.get(view, Counter())
        hits = Counter(self._lines.get((view, action), ()))
        over = np.array([hits[line] for line in trials], dtype=float)
        under = np.array(list(trials.values()), dtype=float)
        count, single = float(under.sum()), bool((under <= 1).all())
        value = float(over.sum()) / count if count else float("nan")
        size = count if single else effective_trials(over, under)
        low, high = _interval(value * size, size) if count else (float("nan"),) * 2
        return Estimate(
            name=f"{INVALID if action is None else action} | {view}",
            value=value,
            low=low,
            high=high,
            method="Clopper-Pearson" + ("" if single else " at the effective number of uses"),
            unit="episode",
            count=len(trials),
        )


@lru_cache(maxsize=65_536)
def _interval(successes: float, trials: float) -> tuple[float, float]:
    """Return the interval of a proportion; rare views have the same few counts again and again."""
    return clopper_pearson(successes, trials)
