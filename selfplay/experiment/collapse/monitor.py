"""Rules over the metrics of a run, and the monitor that applies them and one response."""

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
    """A rule, which fires when the running mean of a metric stays too far from its reference.

    `window` and `patience` count observations, not steps, so that a rule can watch an evaluation
    that runs only at some steps. A step without the metric is no observation, unless `absent` is
    set.
    """

    metric: str
    """Name in metrics.jsonl. `*` matches any text, as in `policy/*/surprisal`; each matching metric
    is watched separately."""
    direction: Literal["decrease", "increase"]
    """Direction that counts as a sign of collapse."""
    threshold: float
    """Largest allowed distance from the reference, in the metric's unit."""
    relative: bool = False
    """True if `threshold` is a fraction of the reference."""
    reference: Literal["first", "best"] | float = "best"
    """Reference of the mean: its first value, its best value so far, or a number."""
    minus: str | None = None
    """Name of a metric that is subtracted first; steps without it are no observations."""
    absent: float | None = None
    """Value of a known metric in a step without it, such as 0 for the rate of an event that did not
    happen; None: no observation."""
    window: int = 5
    """Number of observations in the running mean."""
    patience: int = 3
    """Number of consecutive means that must be too far away."""

    def __post_init__(self) -> None:
        if self.window < 1 or self.patience < 1:
            raise ValueError("window and patience must be at least 1")
        if not (math.isfinite(self.threshold) and self.threshold >= 0):
            raise ValueError(f"threshold must be a number of at least 0, not {self.threshold}")
        if self.absent is not None and not math.isfinite(self.absent):
            raise ValueError(f"absent must be a number or null, not {self.absent}")
        if self.minus is not None and "*" in self.metric:
            raise ValueError("a rule with minus needs the full name of its metric, without *")

    def observations(
        self, metrics: Mapping[str, float], seen: Iterable[str] = ()
    ) -> dict[str, float]:
        """Return the observations of a step by metric; `seen` are the metrics of earlier steps."""
        missing = {} if self.absent is None else dict.fromkeys(seen, self.absent)
        observed = {
            name: value - (metrics.get(self.minus, math.nan) if self.minus else 0.0)
            for name, value in {**missing, **metrics}.items()
            if fnmatchcase(name, self.metric)
        }
        return {name: value for name, value in observed.items() if math.isfinite(value)}


@dataclass(kw_only=True)
class RuleState:
    """The state of a rule for one metric."""

    rule: Rule
    """The rule that is applied."""
    recent: deque[tuple[int, float]] = field(default_factory=deque)
    """(step, value) of the last `window` observations."""
    reference: float | None = None
    """Reference value; None before the first full window."""
    streak: int = 0
    """Number of consecutive means that were too far away."""
    begun: int = 0
    """First step in the window of the streak's first mean."""
    interval: int = 0
    """Largest number of steps between two consecutive observations; 0 before the second one."""

    def observe(self, step: int, value: float) -> None:
        """Add the value of a step."""
        if self.recent:
            self.interval = max(self.interval, step - self.recent[-1][0])
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
        """Mean of the values in the window."""
        return fmean(value for _, value in self.recent)

    @property
    def fires(self) -> bool:
        """True if the streak is long enough."""
        return self.streak >= self.rule.patience

    def has_ended(self, step: int) -> bool:
        """Return True if the metric is no longer observed: at `step`, more than twice its largest
        interval has passed since its last observation."""
        return 0 < 2 * self.interval < step - self.recent[-1][0]

    @property
    def clean_until(self) -> int:
        """The last step that is before any collapse that the rule can report now or later."""
        return (self.begun if self.streak else self.recent[0][0]) - 1

    @property
    def _rising(self) -> bool:
        return self.rule.direction == "increase"

    def _too_far(self, reference: float) -> bool:
        allowed = self.rule.threshold * (abs(reference) if self.rule.relative else 1.0)
        moved = self.mean - reference
        return (moved if self._rising else -moved) > allowed

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the rule, as plain data."""
        return {
            "recent": [list(each) for each in self.recent],
            "reference": self.reference,
            "streak": self.streak,
            "begun": self.begun,
            "interval": self.interval,
        }

    @classmethod
    def restored(cls, rule: Rule, state: Mapping[str, Any]) -> "RuleState":
        """Return the state that `state_dict` described."""
        recent = deque((int(step), float(value)) for step, value in state["recent"])
        return cls(rule=rule, **{**state, "recent": recent})


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A rule that fires at one metric."""

    rule: str
    """Name of the rule."""
    metric: str
    """Name of the metric."""
    begun: int
    """First step of the suspected collapse."""
    new: bool
    """True if the rule begins to fire at this step; it may have fired and stopped before."""
    text: str
    """Description in one line."""


class AnchorMixer(Protocol):
    """The part of a league that a response uses."""

    def mix_anchors(self, share: float, *, until: int) -> None:
        """Play at least the fraction `share` of the groups against anchors, which are opponents of
        the league that do not learn, up to the step `until`."""
        ...


class Response(Protocol):
    """Reaction of the training loop when rules fire."""

    rolls_back: ClassVar[bool]
    """True if the response may roll back to an older checkpoint."""
    needs_league: ClassVar[bool]
    """True if the response needs a league."""

    def answer(
        self,
        alarms: Sequence[Alarm],
        *,
        step: int,
        rollbacks: int,
        checkpoints: Path,
        league: AnchorMixer | None,
    ) -> Path | None:
        """Return the checkpoint to return to, or None; raise CollapsedError to end the run.

        Args:
            alarms: The rules that fire, at least one.
            step: Number of the step.
            rollbacks: Number of earlier rollbacks of the run.
            checkpoints: Folder of the checkpoints.
            league: The league of the run, if it has one.
        """
        ...


class CollapseMonitor:
    """A monitor that applies the rules to each step's metrics and asks the response if one fires.

    The config key `collapse` makes it; `Trainer` calls it after each step.
    """

    def __init__(
        self, *, response: Response, rules: Mapping[str, Mapping[str, Any] | None]
    ) -> None:
        """Args:
        response: Reaction when any rule fires.
        rules: Settings of a `Rule` by name; null disables a rule.

        Raises ConfigError for invalid settings of a rule.
        """
        self.response = response
        self.rules: dict[str, Rule] = {
            name: call(Rule, check_arguments(Rule, node, where=where), where=where)
            for name, node in rules.items()
            if node is not None
            for where in (f"collapse.rules.{name}",)
        }
        self.rollbacks = 0
        """Number of rollbacks of the run."""
        self._traces: dict[tuple[str, str], RuleState] = {}
        self._step = -1

    def observe(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add the metrics of a step and return those of the rules.

        They are `collapse/<rule>`, 1 if the rule fires and else 0, and after a rollback
        `collapse/returned`, the number of rollbacks.
        """
        self._step = step
        for name, rule in self.rules.items():
            seen = [metric for known, metric in self._traces if known == name]
            for metric, value in rule.observations(metrics, seen).items():
                trace = self._traces.setdefault((name, metric), RuleState(rule=rule))
                trace.observe(step, value)
        firing = {alarm.rule for alarm in self.alarms()}
        fires = {f"collapse/{name}": float(name in firing) for name, _ in self._traces}
        return fires | ({"collapse/returned": float(self.rollbacks)} if self.rollbacks else {})

    def alarms(self) -> list[Alarm]:
        """Return the rules that fire now."""
        return [
            Alarm(
                rule=name,
                metric=metric,
                begun=trace.begun,
                new=trace.streak == trace.rule.patience and trace.recent[-1][0] == self._step,
                text=_describe(name, metric, trace),
            )
            for (name, metric), trace in self._traces.items()
            if trace.fires and not trace.has_ended(self._step)
        ]

    def unseen(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yield a line for each rule whose metric, named in full, has not been observed yet."""
        for name, rule in self.rules.items():
            if "*" not in rule.metric and not any(known == name for known, _ in self._traces):
                for wanted in filter(None, (rule.metric, rule.minus)):
                    if wanted not in metrics:
                        hint = nearest(wanted, metrics)
                        yield f"collapse.rules.{name}: no metric {wanted!r} so far; {hint}"

    def respond(self, step: int, *, checkpoints: Path, league: AnchorMixer | None) -> Path | None:
        """Return the checkpoint to return to, or None; raises CollapsedError to end the run."""
        alarms = self.alarms()
        if not alarms:
            return None
        return self.response.answer(
            alarms, step=step, rollbacks=self.rollbacks, checkpoints=checkpoints, league=league
        )

    def seed(self, seed: int) -> int:
        """Return the seed of the episodes: the run's seed, or another one after each rollback."""
        return derive(seed, "returned", self.rollbacks) if self.rollbacks else seed

    def spare(self) -> int | None:
        """Return the last step before any possible collapse; None if the response never rolls back.

        The newest checkpoint up to this step must stay for a rollback.
        """
        if not self.response.rolls_back:
            return None
        current = [each for each in self._traces.values() if not each.has_ended(self._step)]
        return max(0, min((trace.clean_until for trace in current), default=0))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all rules and the number of rollbacks."""
        traces = [[*key, trace.state_dict()] for key, trace in self._traces.items()]
        return {"returned": self.rollbacks, "traces": traces}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`; states of removed rules are dropped."""
        self.rollbacks = int(state["returned"])
        self._traces = {
            (name, metric): RuleState.restored(self.rules[name], seen)
            for name, metric, seen in state["traces"]
            if name in self.rules
        }


def _describe(name: str, metric: str, trace: RuleState) -> str:
    rule = trace.rule
    what = f"{metric} - {rule.minus}" if rule.minus else metric
    way = "rose" if rule.direction == "increase" else "fell"
    whence = "the limit of" if isinstance(rule.reference, float) else f"its {rule.reference},"
    over = f" (mean of {rule.window})" if rule.window > 1 else ""
    return (
        f"{name}: {what} {way} to {trace.mean:.3g}{over}, away from {whence} "
        f"{trace.reference:.3g}; it began by step {max(1, trace.begun)}"
    )
