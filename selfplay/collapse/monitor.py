"""The watch: rules over a run's figures, and one response when any of them fires.

Rules: what is taken for a sign of collapse, and how long it must last.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, Protocol

from selfplay.config.instantiate import call, check_arguments
from selfplay.errors import nearest
from selfplay.rng import derive


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A figure's running mean has left its reference behind, and stays there.

    A step that lacks the figure is no observation, unless `absent` says what it is, so that a rule
    may watch an evaluation that runs now and then: `window` and `patience` count observations, not
    steps.
    """

    metric: str
    """Name in metrics.jsonl. `*` stands for any text, as in `policy/*/surprisal`: each figure that
    fits is watched by itself."""
    direction: Literal["decrease", "increase"]
    """Which way is bad."""
    threshold: float
    """How far from the reference is too far, in the figure's own unit."""
    relative: bool = False
    """Whether `threshold` is a share of the reference instead."""
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
        if not (math.isfinite(self.threshold) and self.threshold >= 0):
            raise ValueError(f"threshold is a number of at least 0, not {self.threshold}")
        if self.absent is not None and not math.isfinite(self.absent):
            raise ValueError(f"absent is a number or null, not {self.absent}")
        if self.minus is not None and "*" in self.metric:
            raise ValueError("a figure with minus is named in full, without *")

    def observations(
        self, figures: Mapping[str, float], seen: Iterable[str] = ()
    ) -> dict[str, float]:
        """The values of a step that the rule watches, by name; `seen` were there before."""
        missing = {} if self.absent is None else dict.fromkeys(seen, self.absent)
        found = {
            name: value - (figures.get(self.minus, math.nan) if self.minus else 0.0)
            for name, value in {**missing, **figures}.items()
            if fnmatchcase(name, self.metric)
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}


@dataclass(kw_only=True)
class RuleState:
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
        return self.rule.direction == "increase"

    def _too_far(self, reference: float) -> bool:
        allowed = self.rule.threshold * (abs(reference) if self.rule.relative else 1.0)
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
    def restored(cls, rule: Rule, state: Mapping[str, Any]) -> "RuleState":
        """The trace that `state_dict` told of."""
        recent = deque((int(step), float(value)) for step, value in state["recent"])
        return cls(rule=rule, **{**state, "recent": recent})


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A rule that fires."""

    rule: str
    """Its name."""
    metric: str
    """The figure that it fires at."""
    begun: int
    """First step of what it fires at."""
    new: bool
    """Whether it did not fire before this step."""
    text: str
    """What happened, in one line."""


class AnchorMixer(Protocol):
    """What a response may ask of a league."""

    def mix_anchors(self, share: float, *, until: int) -> None:
        """Play at least this share of the games against anchors, up to a step."""
        ...


class Response(Protocol):
    """What follows when rules fire."""

    returns: ClassVar[bool]
    """Whether it may go back to an older checkpoint."""
    needs_league: ClassVar[bool]
    """Whether there must be a league."""

    def answer(
        self,
        alarms: Sequence[Alarm],
        *,
        step: int,
        returned: int,
        checkpoints: Path,
        league: AnchorMixer,
    ) -> Path | None:
        """The checkpoint to go back to, if any; raises CollapsedError to end the run.

        Args:
            alarms: The rules that fire, at least one.
            step: At which they do.
            returned: How often the run has gone back before.
            checkpoints: Where they lie.
            league: The league, where there is one.
        """
        ...


class CollapseMonitor:
    """Watches a run for collapse."""

    def __init__(
        self, *, response: Response, rules: Mapping[str, Mapping[str, Any] | None]
    ) -> None:
        """Args:
        response: What follows when any rule fires.
        rules: Name to the settings of a `Rule`; null: no such rule.

        Raises ConfigError for settings that make no rule.
        """
        self.response = response
        self.rules: dict[str, Rule] = {
            name: call(Rule, check_arguments(Rule, node, where=where), where=where)
            for name, node in rules.items()
            if node is not None
            for where in (f"collapse.rules.{name}",)
        }
        self.returned = 0
        """How often the run has gone back to a checkpoint."""
        self._traces: dict[tuple[str, str], RuleState] = {}
        self._step = -1

    def observe(self, step: int, figures: Mapping[str, float]) -> dict[str, float]:
        """Take in a step's figures; `collapse/<rule>` is 1 where the rule fires, else 0."""
        self._step = step
        for name, rule in self.rules.items():
            seen = [figure for known, figure in self._traces if known == name]
            for figure, value in rule.observations(figures, seen).items():
                trace = self._traces.setdefault((name, figure), RuleState(rule=rule))
                trace.observe(step, value)
        firing = {alarm.rule for alarm in self.alarms()}
        found = {f"collapse/{name}": float(name in firing) for name, _ in self._traces}
        return found | ({"collapse/returned": float(self.returned)} if self.returned else {})

    def alarms(self) -> list[Alarm]:
        """The rules that fire now."""
        return [
            Alarm(
                rule=name,
                metric=figure,
                begun=trace.begun,
                new=trace.streak == trace.rule.patience and trace.recent[-1][0] == self._step,
                text=_told(name, figure, trace),
            )
            for (name, figure), trace in self._traces.items()
            if trace.fires
        ]

    def unseen(self, figures: Mapping[str, float]) -> Iterator[str]:
        """A line for each rule on a figure that is named in full and has not been there yet."""
        for name, rule in self.rules.items():
            if "*" not in rule.metric and not any(known == name for known, _ in self._traces):
                for wanted in filter(None, (rule.metric, rule.minus)):
                    if wanted not in figures:
                        hint = nearest(wanted, figures)
                        yield f"collapse.rules.{name}: no figure {wanted!r} so far; {hint}"

    def respond(self, step: int, *, checkpoints: Path, league: AnchorMixer) -> Path | None:
        """The checkpoint to go back to, if any; CollapsedError where the response is to stop."""
        alarms = self.alarms()
        if not alarms:
            return None
        return self.response.answer(
            alarms, step=step, returned=self.returned, checkpoints=checkpoints, league=league
        )

    def seed(self, seed: int) -> int:
        """What games are sampled with: the run's seed, or another after each return."""
        return derive(seed, "returned", self.returned) if self.returned else seed

    def spare(self) -> int | None:
        """The newest checkpoint up to this step must stay, because it may be gone back to."""
        if not self.response.returns:
            return None
        return max(0, min((trace.clean_until for trace in self._traces.values()), default=0))

    def state_dict(self) -> dict[str, Any]:
        """What the rules have seen, and how often the run went back."""
        traces = [[*key, trace.state_dict()] for key, trace in self._traces.items()]
        return {"returned": self.returned, "traces": traces}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; a rule that is no longer there is forgotten."""
        self.returned = int(state["returned"])
        self._traces = {
            (name, figure): RuleState.restored(self.rules[name], seen)
            for name, figure, seen in state["traces"]
            if name in self.rules
        }


def _told(name: str, figure: str, trace: RuleState) -> str:
    rule = trace.rule
    what = f"{figure} - {rule.minus}" if rule.minus else figure
    way = "rose" if rule.direction == "increase" else "fell"
    whence = "the limit of" if isinstance(rule.reference, float) else f"its {rule.reference},"
    over = f" (mean of {rule.window})" if rule.window > 1 else ""
    return (
        f"{name}: {what} {way} to {trace.mean:.3g}{over}, away from {whence} "
        f"{trace.reference:.3g}; it began by step {max(1, trace.begun)}"
    )
