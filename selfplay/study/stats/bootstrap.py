"""Confidence intervals: the range of an estimate if the study were repeated.

The unit that is drawn again decides the meaning of an interval, so every estimate names it. If
games are of two tasks or more, tasks are drawn again: the interval is about the mean over the
distribution that these tasks are a sample of. If all games are of one task, episodes are drawn
again, and the interval is about this task alone.

Three methods, and every estimate says which one it has:

- *Proportions* (a metric that is 0 or 1, or a ratio of counts): Clopper-Pearson at the effective
  number of trials (Korn and Graubard 1998, see `proportions`). It holds with one task and four
  episodes as well.
- *Any other statistic, ten units or more*: the percentile bootstrap with its ends moved
  outwards, because Student's t is wider than the normal distribution (the expanded percentile
  interval of Hesterberg 2015).
- *Any other statistic, fewer than ten units*: the standard deviation over the resamples, times
  Student's t with one degree of freedom less than there are units.

Across training runs the unit is the run, of which there are few: the interval is then Student's, or
that of `pairs` where the cells of a matrix share runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from selfplay.study.stats.proportions import LEVEL, clopper_pearson, effective_trials, student

Numbers = Sequence[float] | np.ndarray
Direction = Literal[
    "exact", "unbiased", "biased_up", "biased_down", "lower_bound", "upper_bound", "unknown"
]

RESAMPLES = 2000
"""Default number of bootstrap resamples."""
MANY = 10
"""Number of units (tasks, or episodes of one task) from which resamples show the shape of a
distribution; with fewer units they show only its standard deviation."""
PROPORTION = "Clopper-Pearson at the effective number of trials"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate with its interval. `Draws` and the statistics make it; results show it."""

    name: str
    """Name of the estimate."""
    value: float
    """Value; NaN if it is not defined, and `notes` says why."""
    low: float = math.nan
    """Lower end of the 95 % interval; NaN if there is no interval."""
    high: float = math.nan
    """Upper end of the interval."""
    method: str = ""
    """Method of the interval."""
    unit: str = ""
    """Unit that is drawn again: the interval is about a repetition with new units."""
    count: int = 0
    """Number of units."""
    direction: Direction = "unbiased"
    """Direction of the bias."""
    null: float | None = None
    """Value under the null hypothesis."""
    p: float | None = None
    """Probability, under the null hypothesis, of a value at least as far from the null value."""
    notes: str = ""
    """Further notes that readers need."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; values that are not finite are null."""
        ends = {"ci_low": finite(self.low), "ci_high": finite(self.high)}
        return {
            "name": self.name,
            "value": finite(self.value),
            **ends,
            "ci_method": self.method,
            "unit_of_resampling": self.unit,
            "n": self.count,
            "direction": self.direction,
            "null_value": self.null,
            "null_p": self.p,
            "notes": self.notes,
        }


def finite(value: float) -> float | None:
    """Return a value for JSON; None if it is not finite."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Bootstrap resamples of episodes, drawn by task or within a task.

    `StudyMatches.draws` makes it; measures compute estimates with it.
    """

    tasks: Sequence[str]
    """[N] task of each episode."""
    resamples: int = RESAMPLES
    """Number of resamples."""
    seed: int = 0
    """Seed of the resampling."""
    given: bool = False
    """True if the tasks are fixed: episodes are drawn within each task, and the interval is about
    these tasks. For statistics that would change entirely if one task were missing."""
    nested: bool = True
    """True: with two to nine tasks, episodes are drawn within each task too, so that intervals are
    safe. False: only tasks are drawn, so that the variance of the resamples has no bias."""
    groups: list[np.ndarray] = field(init=False)
    """Indices of the episodes of each task."""

    def __post_init__(self) -> None:
        names = np.unique(np.asarray(self.tasks, dtype=object).astype(str), return_inverse=True)[1]
        groups = [np.flatnonzero(names == number) for number in range(names.max(initial=-1) + 1)]
        object.__setattr__(self, "groups", groups)

    @property
    def unit(self) -> str:
        """Unit that is drawn again."""
        if self._within:
            return "episode, within each task" if len(self.groups) > 1 else "episode of one task"
        return "task"

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.tasks) if self._within else len(self.groups)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the variance of the resamples: within each task, one is lost."""
        if self._within:
            return len(self.tasks) - len(self.groups)
        return len(self.groups) - 1

    @property
    def _within(self) -> bool:
        """True if episodes are drawn, not tasks. Tasks with one episode each are always drawn."""
        return len(self.groups) < 2 or (self.given and len(self.groups) < len(self.tasks))

    @property
    def method(self) -> str:
        """Name of the method that makes intervals from the resamples, see `ends`."""
        shape = "Student's t" if self.freedom + 1 < MANY else "expanded percentile"
        return f"bootstrap, {self.resamples} resamples, {shape}"

    @cached_property
    def weights(self) -> np.ndarray:
        """[resamples, N] weight of each episode in each resample.

        Of K units K - 1 are drawn, with weight K / (K - 1) each: the variance of the resamples then
        has no bias, while drawing K units would make it too small by the factor (K - 1) / K. With
        fewer than ten tasks, episodes are drawn within each task as well (unless `nested` is
        False), so that a few tasks which are alike by chance do not look as if nothing varied. The
        variance is then too large.
        """
        rng = np.random.default_rng(self.seed)
        found = np.zeros((self.resamples, len(self.tasks)))
        count, once = len(self.groups), np.ones(self.resamples, dtype=int)
        if self._within:
            for group in self.groups:
                found[:, group] = _redrawn(rng, once, len(group))
            return found
        fewer = count - 1
        drawn = rng.multinomial(fewer, np.full(count, 1 / count), size=self.resamples)
        for number, group in enumerate(self.groups):
            times = drawn[:, number]
            within = times[:, None]
            if self.nested and count < MANY:
                within = _redrawn(rng, times, len(group))
            found[:, group] = within * (count / fewer)
        return found

    def mean(self, name: str, values: Numbers, **more: Any) -> Estimate:
        """Return the mean of one value per episode. NaN (not measured) values are left out.

        A task without any value is no unit: it does not make the interval narrower.
        `null=0.0` marks the values as differences or effects; without it, values that are all 0 or
        1 are treated as a proportion. `bounds` are the least and the largest possible value, see
        `of`.
        """
        return self.ratio(name, values, np.ones(len(values)), **more)

    def ratio(
        self,
        name: str,
        above: Numbers,
        below: Numbers,
        *,
        bounds: tuple[float, float] = (-math.inf, math.inf),
        **more: Any,
    ) -> Estimate:
        """Return the sum of `above` over the sum of `below`, both [N] per episode, such as counts.

        If they are counts of successes and of trials, and `null` is not 0 (see `mean`), the
        interval is that of a proportion. Episodes with a value that is not finite, or with two
        values of 0, are left out; a task without any other episode is no unit.
        """
        over, under = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
        known = np.isfinite(over) & np.isfinite(under)
        over, under = np.where(known, over, 0.0), np.where(known, under, 0.0)
        if more.get("null") != 0.0 and _counts(over, under):
            return self._proportion(name, over, under, **more)
        if not (some := (over != 0) | (under != 0)).any():
            some = np.full(len(some), True)
        over, under = over[some], under[some]
        return self._among(some).of(
            name, lambda w: divide(w @ over, w @ under), bounds=bounds, **more
        )

    def _among(self, chosen: np.ndarray) -> "Draws":
        """Return resamples of the chosen episodes, [N] bool; of all episodes if none is chosen."""
        if chosen.all() or not chosen.any():
            return self
        return replace(self, tasks=[self.tasks[place] for place in np.flatnonzero(chosen).tolist()])

    def _proportion(self, name: str, over: np.ndarray, under: np.ndarray, **more: Any) -> Estimate:
        """Return a proportion of trials in clusters: tasks, or episodes of a single task."""
        total = float(under.sum())
        value = float(over.sum()) / total if total else math.nan
        low = high = math.nan
        if self.count > 1 and total:
            groups = [group for group in self.groups if under[group].any()]
            if self._within or len(groups) < 2:  # one task: its episodes are the clusters
                groups = [np.array([place]) for place in np.flatnonzero(under)]
            trials = effective_trials(
                *(np.array([x[g].sum() for g in groups]) for x in (over, under))
            )
            low, high = clopper_pearson(value * trials, trials)
        units = self._among(under != 0)
        details = {"method": PROPORTION, "unit": units.unit, "count": units.count, **more}
        return Estimate(name=name, value=value, low=low, high=high, **details)

    def of(
        self,
        name: str,
        statistic: Callable[[np.ndarray], Any],
        *,
        bounds: tuple[float, float] = (-math.inf, math.inf),
        reflect: bool = False,
        **more: Any,
    ) -> Estimate:
        """Return an estimate of any statistic of weighted episodes: [B, N] weights to [B] values.

        The interval needs at least two units, and is cut at `bounds`, the least and the largest
        possible value. `reflect` is for a statistic that is biased with few episodes, such as an
        entropy: the mean difference of its resamples from it is subtracted, and the interval is the
        percentile interval together with its mirror image about the value (the basic bootstrap).
        """
        value = float(np.asarray(statistic(np.ones((1, len(self.tasks)))))[0])
        low = high = math.nan
        if self.count > 1 and math.isfinite(value):
            found = np.asarray(statistic(self.weights))
            low, high = self.ends(value, found)
            if reflect:
                low, high = min(low, 2 * value - high), max(high, 2 * value - low)
                value = float(np.clip(2 * value - np.nanmean(found), *bounds))
                more["method"] = f"{self.method} and its mirror image, bias subtracted"
            low, high = (float(np.clip(end, *bounds)) for end in (low, high))
            if math.isclose(low, high, abs_tol=1e-12):
                low = high = value
                more["notes"] = flat(self.unit, more.get("notes"))
        details = {"method": self.method, "unit": self.unit, "count": self.count, **more}
        return Estimate(name=name, value=value, low=low, high=high, **details)

    def ends(self, value: float, found: np.ndarray, *, level: float = LEVEL) -> tuple[float, float]:
        """Return the ends of the interval around a value with the resamples `found`, [resamples].

        Resamples that are not finite are left out; the ends are NaN if none is finite.
        """
        known = found[np.isfinite(found)]
        if not len(known) or self.freedom < 1:
            return math.nan, math.nan
        wide = student(self.freedom, level)
        if self.freedom + 1 < MANY:
            half = wide * float(known.std())
            return value - half, value + half
        low, high = percentiles(known, level=level)
        more = wide / NormalDist().inv_cdf((1 + level) / 2)
        return value - more * (value - low), value + more * (high - value)


def _redrawn(rng: np.random.Generator, times: np.ndarray, size: int) -> np.ndarray:
    """Return [B, size] weights of `size` episodes of a task that is drawn `times` [B] times.

    One episode fewer than `size` is drawn each time, and the weights are scaled up.
    """
    if size < 2:
        return np.repeat(times[:, None], size, axis=1).astype(float)
    drawn = rng.multinomial(times * (size - 1), np.full(size, 1 / size))
    return np.asarray(drawn * (size / (size - 1)))


def _counts(over: np.ndarray, under: np.ndarray) -> bool:
    """Return True if these are whole numbers of successes (`over`) and of trials (`under`)."""
    whole = all(np.array_equal(each, np.floor(each)) for each in (over, under))
    return whole and bool(((over >= 0) & (over <= under)).all())


def flat(unit: str, notes: str | None) -> str:
    """Return the notes, and one more which says that the interval is a single point."""
    flat = f"the same in every {unit}: the interval has no width"
    return "; ".join(filter(None, [notes, flat]))


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return quotients; NaN for a `below` of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below != 0, above / below, np.nan)


def weighted(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return [B] means of the finite values under [B, N] weights; NaN if no value is finite."""
    known = np.isfinite(values)
    return divide(weights @ np.where(known, values, 0.0), weights @ known)


def mean(values: np.ndarray) -> float:
    """Return the mean of the finite values; NaN if no value is finite."""
    return float(weighted(np.ones((1, len(values))), values)[0])


def percentiles(found: np.ndarray, *, level: float = LEVEL) -> tuple[float, float]:
    """Return the ends of the middle 95 %, or `level`, of the values; NaN if none is finite."""
    known = found[np.isfinite(found)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def over_runs(name: str, values: Numbers, **more: Any) -> Estimate:
    """Return the mean over training runs with Student's interval, cut at `bounds` if given.

    A percentile bootstrap over few runs is too narrow. With one run there is no interval.
    """
    found = np.asarray(values, dtype=float)
    count, value = len(found), float(found.mean()) if len(found) else math.nan
    half = math.nan
    if count > 1:
        half = student(count - 1) * float(found.std(ddof=1)) / math.sqrt(count)
    ends = (value - half, value + half)
    return over_runs_of(name, value, ends, count, "mean and Student's t", **more)


def over_runs_of(
    name: str,
    value: float,
    ends: tuple[float, float],
    count: int,
    method: str,
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    **more: Any,
) -> Estimate:
    """Return an estimate over training runs, its interval cut at `bounds`.

    NaN ends mean that there is no interval.
    """
    unit = "training run"
    low, high = (float(np.clip(end, *bounds)) for end in ends)
    if math.isclose(low, high, abs_tol=1e-12):
        low, high, more["notes"] = value, value, flat(unit, more.get("notes"))
    return Estimate(
        name=name,
        value=value,
        low=low,
        high=high,
        method=method,
        unit=unit,
        count=count,
        **more,
    )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion of independent trials; NaN for 0 trials."""
    if not trials:
        return math.nan, math.nan
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, size = successes / trials, 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / size
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)) / size
    return max(0.0, centre - half), min(1.0, centre + half)


def share(name: str, successes: int, trials: int, **more: Any) -> Estimate:
    """Return a proportion of independent trials with Wilson's interval."""
    low, high = wilson(successes, trials)
    value = successes / trials if trials else math.nan
    given = {"method": "Wilson", "unit": "trial", **more}
    return Estimate(name=name, value=value, low=low, high=high, count=trials, **given)


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """Return the q-value of each p: the smallest false discovery rate that accepts it."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    found, least = [1.0] * len(ps), 1.0
    for rank in range(len(ps), 0, -1):
        place = order[rank - 1]
        least = min(least, ps[place] * len(ps) / rank)
        found[place] = least
    return found
