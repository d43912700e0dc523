"""Responses to a collapse: warn, stop, play more anchors, or roll back to before it began."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from selfplay.errors import CollapsedError, ConfigError
from selfplay.experiment.collapse.monitor import Alarm, AnchorMixer
from selfplay.learner import checkpoint

ADVICE = (
    "begin again with a lower learning rate, a KL term or a league "
    "(to start from a checkpoint: policy.model=RUN/checkpoints/STEP/policies/NAME)"
)


class Warn:
    """A response that does nothing: the run goes on.

    The training loop prints a note for each new alarm and records the rules, as for any response.
    """

    rolls_back: ClassVar[bool] = False
    needs_league: ClassVar[bool] = False

    def answer(self, alarms: Sequence[Alarm], **situation: Any) -> Path | None:
        """Return None: the run goes on."""
        return None


class Stop:
    """A response that ends the run with the diagnosis."""

    rolls_back: ClassVar[bool] = False
    needs_league: ClassVar[bool] = False

    def answer(self, alarms: Sequence[Alarm], *, step: int, **situation: Any) -> Path | None:
        """Raise CollapsedError with the diagnosis."""
        raise CollapsedError(f"step {step}: collapsing: {diagnosis(alarms)}; {ADVICE}")


class MixAnchors:
    """A response that plays more games against the league's anchors.

    Anchors are opponents that do not learn, so they do not collapse with the policy.

    The effect lasts while a rule fires and for `steps` steps after that.
    """

    rolls_back: ClassVar[bool] = False
    needs_league: ClassVar[bool] = True

    def __init__(self, *, share: float = 0.5, steps: int = 50) -> None:
        """Args:
        share: Smallest fraction of the groups of matches against anchors, in (0, 1].
        steps: Number of steps after the last alarm.
        """
        if not 0.0 < share <= 1.0 or steps < 1:
            raise ValueError("share must be in (0, 1], and steps at least 1")
        self.share, self.steps = share, steps

    def answer(
        self, alarms: Sequence[Alarm], *, step: int, league: AnchorMixer | None, **situation: Any
    ) -> Path | None:
        """Ask the league for more anchors and return None."""
        if league is None:  # refused by the validation of the config
            raise ConfigError(
                "league: there are no anchors without a league; choose league=anchors"
            )
        league.mix_anchors(self.share, until=step + self.steps)
        return None


class RollBack:
    """A response that returns to the last checkpoint before the collapse began.

    The run continues from there with new seeds.

    The record of the later steps moves to `rolled_back/<number>` of the run folder, with the
    reason. metrics.jsonl and episodes/ continue from the checkpoint, with one line per step. A
    rollback costs the discarded steps and changes only the random numbers: if the settings cause
    the collapse it happens again, and after `times` rollbacks the run ends.
    """

    rolls_back: ClassVar[bool] = True
    needs_league: ClassVar[bool] = False

    def __init__(self, *, times: int = 2) -> None:
        """`times`: maximum number of rollbacks."""
        if times < 1:
            raise ValueError(f"times must be at least 1, not {times}")
        self.times = times

    def answer(
        self,
        alarms: Sequence[Alarm],
        *,
        step: int,
        rollbacks: int,
        checkpoints: Path,
        **situation: Any,
    ) -> Path | None:
        """Return the checkpoint; raise CollapsedError if there is none, or too many rollbacks."""
        if rollbacks >= self.times:
            again = f"collapsing again after going back {rollbacks} time(s)"
            raise CollapsedError(f"step {step}: {again}: {diagnosis(alarms)}; {ADVICE}")
        begun = min(alarm.begun for alarm in alarms)
        place = checkpoint.before(checkpoints, max(1, begun))
        if place is None:
            raise CollapsedError(
                f"step {step}: collapsing, and no whole checkpoint is left from before step "
                f"{begun}: {diagnosis(alarms)}; {ADVICE}"
            )
        return place


def diagnosis(alarms: Sequence[Alarm]) -> str:
    """Return the descriptions of all alarms in one line."""
    return "; ".join(alarm.text for alarm in alarms)
