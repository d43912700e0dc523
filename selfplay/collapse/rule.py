"""Rules: what is taken for a sign of collapse, and how long it must last."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A figure's running mean has left its reference behind, and stays there.

    A step that lacks the figure is no observation, unless `absent` says what it is, so that a rule
    may watch an evaluation that runs now and then: `window` and `patience` count observations, not
    steps.
    """

    figure: str
    """Name in metrics.jsonl. `*` stands for any text, as in `policy/*/surprisal`: each figure that
    fits is watched by itself."""
    direction: Literal["falls", "rises"]
    """Which way is bad."""
    by: float
    """How far from the reference is too far, in the figure's own unit."""
    relative: bool = False
    """Whether `by` is a share of the reference instead."""
    reference: Literal["first", "best"] | float = "best"
    """What the mean is compared to: its first value, its best so far, or a number."""
    minus: str | None = None
    """Name of a figure that is subtracted first; steps that lack it are no observations."""
    absent: float | None = None
    """What a figure that was there before counts as in a step that lacks it: 0 for a share of
    something that has just not happened; None: no observation."""
    window: int = 5
    """Observations that are averaged, so that noise in one does not count."""
    patience: int = 3
    """Means in a row that must be too far away."""

    def __post_init__(self) -> None:
        if self.window < 1 or self.patience < 1:
            raise ValueError("window and patience are at least 1")
        if not (math.isfinite(self.by) and self.by >= 0):
            raise ValueError(f"by is a number of at least 0, not {self.by}")
        if self.absent is not None and not math.isfinite(self.absent):
            raise ValueError(f"absent is a number or null, not {self.absent}")
        if self.minus is not None and "*" in self.figure:
            raise ValueError("a figure with minus is named in full, without *")

    def observations(
        self, figures: Mapping[str, float], seen: Iterable[str] = ()
    ) -> dict[str, float]:
        """The values of a step that the rule watches, by name; `seen` were there before."""
        missing = {} if self.absent is None else dict.fromkeys(seen, self.absent)
        found = {
            name: value - (figures.get(self.minus, math.nan) if self.minus else 0.0)
            for name, value in {**missing, **figures}.items()
            if fnmatchcase(name, self.figure)
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}


@dataclass(kw_only=True)
class Trace:
    """What a rule has seen of one figure."""

    rule: Rule
    """The rule."""
    recent: deque[tuple[int, float]] = field(default_factory=deque)
    """(step, value) of the last `window` observations."""
    reference: float | None = None
    """First or best mean so far."""
    streak: int = 0
    """Means in a row that were too far away."""
    begun: int = 0
    """First step that is part of the streak's first mean."""

    def observe(self, step: int, value: float) -> None:
        """Take in one more value."""
        self.recent.append((step, value))
        if len(self.recent) > self.rule.window:
            self.recent.popleft()
        if len(self.recent) < self.rule.window:
            return
        if self.reference is None:
            given = self.rule.reference
            self.reference = self.mean if isinstance(given, str) else given
        if not self._too_far(self.reference):
            self.streak = 0
            if self.rule.reference == "best":
                better = min if self._rising else max
                self.reference = better(self.reference, self.mean)
            return
        if not self.streak:
            self.begun = self.recent[0][0]
        self.streak += 1

    @property
    def mean(self) -> float:
        """Mean of the window."""
        return fmean(value for _, value in self.recent)

    @property
    def fires(self) -> bool:
        """Whether it has lasted long enough."""
        return self.streak >= self.rule.patience

    @property
    def clean_until(self) -> int:
        """The last step that is certainly before whatever it may fire at."""
        return (self.begun if self.streak else self.recent[0][0]) - 1

    @property
    def _rising(self) -> bool:
        return self.rule.direction == "rises"

    def _too_far(self, reference: float) -> bool:
        allowed = self.rule.by * (abs(reference) if self.rule.relative else 1.0)
        moved = self.mean - reference
        return (moved if self._rising else -moved) > allowed

    def state_dict(self) -> dict[str, Any]:
        """All but the rule, as plain data."""
        return {
            "recent": [list(each) for each in self.recent],
            "reference": self.reference,
            "streak": self.streak,
            "begun": self.begun,
        }

    @classmethod
    def restored(cls, rule: Rule, state: Mapping[str, Any]) -> "Trace":
        """The trace that `state_dict` told of."""
        recent = deque((int(step), float(value)) for step, value in state["recent"])
        return cls(rule=rule, **{**state, "recent": recent})
