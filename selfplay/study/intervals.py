"""Intervals: how far a measure would move if it were measured again.

What is drawn again decides what an interval means, so every estimate names it. Episodes of one task
move together where there are tasks enough to be a sample (a cluster bootstrap); where a handful of
tasks is all that there is, they are taken as given and episodes are drawn within each, one fewer
than there are and weighted up, so that few of them do not look alike by chance. Across
training runs the unit is the run, of which there are few: the interval is then Student's, or a
jackknife over runs where cells of a matrix share them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

Numbers = Sequence[float] | np.ndarray
Direction = Literal[
    "exact", "unbiased", "biased_up", "biased_down", "lower_bound", "upper_bound", "unknown"
]

RESAMPLES = 2000
LEVEL = 0.95
MANY_TASKS = 10
"""From this many tasks on, tasks are drawn again and not only episodes within them."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure, how far it would move, and what that rests on."""

    name: str
    """What it is."""
    value: float
    """NaN where it is not defined; `notes` says why."""
    low: float = math.nan
    """Lower end of the 95 % interval; NaN where there is none."""
    high: float = math.nan
    """Upper end."""
    method: str = ""
    """How the interval was made."""
    unit: str = ""
    """What was drawn again: the interval is about repeating that."""
    count: int = 0
    """How many of them."""
    direction: Direction = "unbiased"
    """Which way the estimate errs."""
    null: float | None = None
    """The value that would mean that there is nothing to see."""
    p: float | None = None
    """Chance of a value as far from it as this one, if there is nothing to see."""
    notes: str = ""
    """What else must be known to read it."""

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not finite is null."""
        ends = {"ci_low": _finite(self.low), "ci_high": _finite(self.high)}
        return {
            "name": self.name,
            "value": _finite(self.value),
            **ends,
            "ci_method": self.method,
            "unit_of_resampling": self.unit,
            "n": self.count,
            "direction": self.direction,
            "null_value": self.null,
            "null_p": self.p,
            "notes": self.notes,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Bootstrap resamples of episodes: index arrays that keep together what belongs together."""

    tasks: Sequence[str]
    """[N] the task of each episode."""
    resamples: int = RESAMPLES
    """How many."""
    seed: int = 0
    """Of the resampling."""
    groups: list[np.ndarray] = field(init=False)
    """Indices of the episodes of each task."""

    def __post_init__(self) -> None:
        names = np.unique(np.asarray(self.tasks, dtype=object).astype(str), return_inverse=True)[1]
        groups = [np.flatnonzero(names == number) for number in range(names.max(initial=-1) + 1)]
        object.__setattr__(self, "groups", groups)

    @property
    def unit(self) -> str:
        """What is drawn again."""
        many = len(self.groups) >= MANY_TASKS or len(self.groups) == len(self.tasks)
        return "task" if many else "episode, within each task"

    @property
    def count(self) -> int:
        """How many of them there are."""
        return len(self.groups) if self.unit == "task" else len(self.tasks)

    @cached_property
    def weights(self) -> np.ndarray:
        """[resamples, N] how much each episode counts."""
        rng = np.random.default_rng(self.seed)
        found = np.zeros((self.resamples, len(self.tasks)))
        if self.unit == "task":
            share = np.full(len(self.groups), 1 / len(self.groups))
            drawn = rng.multinomial(len(self.groups), share, size=self.resamples)
            for number, group in enumerate(self.groups):
                found[:, group] = drawn[:, [number]]
            return found
        for group in self.groups:
            # Of m, m - 1: as many would vary less than the episodes do, by (m - 1) / m.
            size = len(group)
            share, fewer = np.full(size, 1 / size), max(size - 1, 1)
            drawn = rng.multinomial(fewer, share, size=self.resamples)
            found[:, group] = drawn * (size / fewer)
        return found

    def mean(self, name: str, values: Numbers, **more: Any) -> Estimate:
        """The mean of a value per episode. Values that are NaN (not measured) are left out."""
        return self.ratio(name, values, np.ones(len(values)), **more)

    def ratio(self, name: str, above: Numbers, below: Numbers, **more: Any) -> Estimate:
        """Sum of `above` over sum of `below`, both [N] per episode, such as counts."""
        over, under = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
        known = np.isfinite(over) & np.isfinite(under)
        over, under = np.where(known, over, 0.0), np.where(known, under, 0.0)
        return self.of(name, lambda w: divide(w @ over, w @ under), **more)

    def of(self, name: str, statistic: Callable[[np.ndarray], Any], **more: Any) -> Estimate:
        """Any statistic of weighted episodes: [B, N] weights to [B] values.

        The interval is the percentile one, and needs two episodes to draw from at the least.
        """
        value = float(np.asarray(statistic(np.ones((1, len(self.tasks)))))[0])
        low = high = math.nan
        if self.count > 1 and math.isfinite(value):
            found = np.asarray(statistic(self.weights))
            low, high = percentiles(found)
            if math.isclose(low, high, abs_tol=1e-12):
                low = high = value
                more["notes"] = _flat(self.unit, more.get("notes"))
        return Estimate(
            name=name,
            value=value,
            low=low,
            high=high,
            method=f"bootstrap, {self.resamples} resamples, percentile",
            unit=self.unit,
            count=self.count,
            **more,
        )


def _flat(unit: str, notes: str | None) -> str:
    """The notes, and that an interval is a point."""
    flat = f"the same in every {unit}: the interval knows no spread"
    return "; ".join(filter(None, [notes, flat]))


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotients; NaN where `below` is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below != 0, above / below, np.nan)


def weighted(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[B] means of the values that are known (finite), under [B, N] weights; NaN where none is."""
    known = np.isfinite(values)
    return divide(weights @ np.where(known, values, 0.0), weights @ known)


def mean(values: np.ndarray) -> float:
    """The mean of the values that are known; NaN where none is."""
    return float(weighted(np.ones((1, len(values))), values)[0])


def percentiles(found: np.ndarray) -> tuple[float, float]:
    """The ends between which the middle 95 % lie; NaN where nothing is finite."""
    known = found[np.isfinite(found)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def over_runs(name: str, values: Numbers, **more: Any) -> Estimate:
    """The mean over training runs, with Student's interval.

    A percentile bootstrap over few runs is too narrow. With one run there is no interval.
    """
    found = np.asarray(values, dtype=float)
    count, value = len(found), float(found.mean()) if len(found) else math.nan
    variance = float(found.var(ddof=1)) / count if count > 1 else math.nan
    return _over_runs(name, value, variance, count, "mean and Student's t", **more)


def jackknife(
    name: str, statistic: Callable[[Sequence[int]], float], count: int, **more: Any
) -> Estimate:
    """A statistic of a matrix whose cells share agents: leave out one agent (row and column) each.

    `statistic` takes the agents that are kept. A bootstrap over cells is far too narrow here, and
    gets worse with more agents. Needs three agents for an interval.
    """
    everyone = list(range(count))
    value = statistic(everyone)
    variance = math.nan
    if count > 2:
        left = np.array([statistic([a for a in everyone if a != out]) for out in everyone])
        variance = (count - 1) / count * float(((left - left.mean()) ** 2).sum())
    return _over_runs(name, value, variance, count, "jackknife over runs and Student's t", **more)


def _over_runs(
    name: str, value: float, variance: float, count: int, method: str, **more: Any
) -> Estimate:
    """A figure over training runs with Student's interval; NaN ends where there is no variance."""
    unit = "training run"
    half = math.nan if math.isnan(variance) else student(count - 1) * math.sqrt(variance)
    if math.isclose(half, 0.0, abs_tol=1e-12):
        half, more["notes"] = 0.0, _flat(unit, more.get("notes"))
    return Estimate(
        name=name,
        value=value,
        low=value - half,
        high=value + half,
        method=method,
        unit=unit,
        count=count,
        **more,
    )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of independent trials; NaN where there are none."""
    if not trials:
        return math.nan, math.nan
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, size = successes / trials, 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / size
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)) / size
    return max(0.0, centre - half), min(1.0, centre + half)


def share(name: str, successes: int, trials: int, **more: Any) -> Estimate:
    """A share of independent trials with Wilson's interval."""
    low, high = wilson(successes, trials)
    value = successes / trials if trials else math.nan
    given = {"method": "Wilson", "unit": "trial", **more}
    return Estimate(name=name, value=value, low=low, high=high, count=trials, **given)


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """The q-value of each p: the least false discovery rate at which it counts as found."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    found, least = [1.0] * len(ps), 1.0
    for rank in range(len(ps), 0, -1):
        place = order[rank - 1]
        least = min(least, ps[place] * len(ps) / rank)
        found[place] = least
    return found


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t with so many whole degrees of freedom."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, freedom) < LEVEL else (low, middle)
    return low


def _between(t: float, freedom: int) -> float:
    """Chance of |T| < t: the finite sums for whole degrees (Abramowitz and Stegun 26.7.3, 4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, term, total = math.cos(angle), 1.0, 0.0
    first = freedom % 2
    for step in range(first, freedom - 1, 2):
        if step == first:
            term = cosine if first else 1.0
        else:
            term *= cosine**2 * (step - 1) / step
        total += term
    if first:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
