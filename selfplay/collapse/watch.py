"""The watch: rules over a run's figures, and one response when any of them fires."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from selfplay.build import construct, fit
from selfplay.collapse.rule import Rule, Trace
from selfplay.errors import nearest
from selfplay.seeds import derive


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A rule that fires."""

    rule: str
    """Its name."""
    figure: str
    """The figure that it fires at."""
    begun: int
    """First step of what it fires at."""
    new: bool
    """Whether it did not fire before this step."""
    text: str
    """What happened, in one line."""


class League(Protocol):
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
        league: League,
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


class Watch:
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
            name: construct(Rule, fit(Rule, node, where=where), where=where)
            for name, node in rules.items()
            if node is not None
            for where in (f"collapse.rules.{name}",)
        }
        self.returned = 0
        """How often the run has gone back to a checkpoint."""
        self._traces: dict[tuple[str, str], Trace] = {}
        self._step = -1

    def observe(self, step: int, figures: Mapping[str, float]) -> dict[str, float]:
        """Take in a step's figures; `collapse/<rule>` is 1 where the rule fires, else 0."""
        self._step = step
        for name, rule in self.rules.items():
            seen = [figure for known, figure in self._traces if known == name]
            for figure, value in rule.observations(figures, seen).items():
                trace = self._traces.setdefault((name, figure), Trace(rule=rule))
                trace.observe(step, value)
        firing = {alarm.rule for alarm in self.alarms()}
        found = {f"collapse/{name}": float(name in firing) for name, _ in self._traces}
        return found | ({"collapse/returned": float(self.returned)} if self.returned else {})

    def alarms(self) -> list[Alarm]:
        """The rules that fire now."""
        return [
            Alarm(
                rule=name,
                figure=figure,
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
            if "*" not in rule.figure and not any(known == name for known, _ in self._traces):
                for wanted in filter(None, (rule.figure, rule.minus)):
                    if wanted not in figures:
                        hint = nearest(wanted, figures)
                        yield f"collapse.rules.{name}: no figure {wanted!r} so far; {hint}"

    def respond(self, step: int, *, checkpoints: Path, league: League) -> Path | None:
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
            (name, figure): Trace.restored(self.rules[name], seen)
            for name, figure, seen in state["traces"]
            if name in self.rules
        }


def _told(name: str, figure: str, trace: Trace) -> str:
    rule = trace.rule
    what = f"{figure} - {rule.minus}" if rule.minus else figure
    way = "rose" if rule.direction == "rises" else "fell"
    whence = "the limit of" if isinstance(rule.reference, float) else f"its {rule.reference},"
    over = f" (mean of {rule.window})" if rule.window > 1 else ""
    return (
        f"{name}: {what} {way} to {trace.mean:.3g}{over}, away from {whence} "
        f"{trace.reference:.3g}; it began by step {max(1, trace.begun)}"
    )
