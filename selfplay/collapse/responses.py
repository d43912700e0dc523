"""Responses to a collapse: warn, stop, mix in anchors, or go back to before it began."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from selfplay.collapse.monitor import Alarm, AnchorMixer
from selfplay.errors import CollapsedError
from selfplay.learner import checkpoint

ADVICE = (
    "begin again with a lower learning rate, a KL term or a league "
    "(policy.model=RUN/checkpoints/STEP/policies/NAME goes on from a checkpoint)"
)


class Warn:
    """A note when a rule begins to fire, and `collapse/<rule>` in the metrics; nothing else."""

    returns: ClassVar[bool] = False
    needs_league: ClassVar[bool] = False

    def answer(self, alarms: Sequence[Alarm], **situation: Any) -> Path | None:
        """Go on."""
        return None


class Stop:
    """The run ends with the diagnosis."""

    returns: ClassVar[bool] = False
    needs_league: ClassVar[bool] = False

    def answer(self, alarms: Sequence[Alarm], *, step: int, **situation: Any) -> Path | None:
        """Raise CollapsedError."""
        raise CollapsedError(f"step {step}: collapsing: {diagnosis(alarms)}; {ADVICE}")


class MixAnchors:
    """More games against the league's anchors, which do not collapse with the policy.

    As long as a rule fires, and for `steps` steps after that.
    """

    returns: ClassVar[bool] = False
    needs_league: ClassVar[bool] = True

    def __init__(self, *, share: float = 0.5, steps: int = 50) -> None:
        """`share` of the games are against anchors at least; `steps` as above."""
        if not 0.0 < share <= 1.0 or steps < 1:
            raise ValueError("share lies in (0, 1], steps is at least 1")
        self.share, self.steps = share, steps

    def answer(
        self, alarms: Sequence[Alarm], *, step: int, league: AnchorMixer, **situation: Any
    ) -> Path | None:
        """Go on with more anchors."""
        league.mix_anchors(self.share, until=step + self.steps)
        return None


class RollBack:
    """Go back to the last checkpoint from before the rule's first sign, and on with other seeds.

    What was recorded since then is set aside in `rolled_back/<number>` of the run folder, with the
    reason; metrics.jsonl and episodes/ go on from the checkpoint, so that they tell one story with
    a line per step. It costs the steps that are thrown away, and changes only luck: where the
    settings themselves lead to collapse it happens again, and after `times` returns the run ends.
    """

    returns: ClassVar[bool] = True
    needs_league: ClassVar[bool] = False

    def __init__(self, *, times: int = 2) -> None:
        """`times` is how often at most."""
        if times < 1:
            raise ValueError(f"times is at least 1, not {times}")
        self.times = times

    def answer(
        self,
        alarms: Sequence[Alarm],
        *,
        step: int,
        returned: int,
        checkpoints: Path,
        **situation: Any,
    ) -> Path | None:
        """The checkpoint; CollapsedError where there is none, and after `times` returns."""
        if returned >= self.times:
            again = f"collapsing again after going back {returned} time(s)"
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
    """What fires, in one line."""
    return "; ".join(alarm.text for alarm in alarms)
