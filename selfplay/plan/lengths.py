"""How long completions are: a capped log-normal, or what was recorded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import NormalDist, fmean


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Completion lengths in tokens."""

    average: float
    """Mean of the distribution before the cap."""
    cv: float = 1.0
    """Standard deviation by mean; 0: all alike."""
    cap: int
    """The limit that cuts completions off."""
    recorded: Sequence[int] = ()
    """Lengths that were seen: where there are any, they are the distribution."""

    def __post_init__(self) -> None:
        if self.average <= 0 or self.cv < 0 or self.cap < 1:
            raise ValueError("lengths: average and cap are above 0, and cv is not negative")

    @classmethod
    def of(cls, recorded: Sequence[int], cap: int) -> "Lengths":
        """The distribution of recorded lengths."""
        return cls(average=max(fmean(recorded), 1e-9), cap=cap, recorded=tuple(sorted(recorded)))

    def quantile(self, share: float) -> float:
        """The length that `share` of the completions do not exceed."""
        if self.recorded:
            return float(
                self.recorded[min(int(share * len(self.recorded)), len(self.recorded) - 1)]
            )
        deviation = math.sqrt(math.log1p(self.cv**2))
        if not deviation:
            return min(self.average, float(self.cap))
        middle = math.log(self.average) - deviation**2 / 2
        drawn = math.exp(middle + deviation * NormalDist().inv_cdf(share))
        return min(max(drawn, 1.0), float(self.cap))

    def spread(self, count: int) -> list[float]:
        """`count` lengths that stand for the distribution, ascending: its quantiles, no chance."""
        return [self.quantile((place + 0.5) / count) for place in range(count)]

    def draw(self, rng: Random, count: int) -> list[float]:
        """`count` random lengths."""
        return [self.quantile(min(max(rng.random(), 1e-12), 1 - 1e-12)) for _ in range(count)]

    @cached_property
    def mean(self) -> float:
        """Mean under the cap."""
        return fmean(self.recorded) if self.recorded else fmean(self.spread(2000))

    def longest(self, count: int) -> float:
        """What the longest of `count` completions is likely to be."""
        return self.quantile(1 - 0.5 / max(count, 1))
