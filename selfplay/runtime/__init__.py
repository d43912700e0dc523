"""Where a run happens: in this process, or on workers and learners of a cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from selfplay.engines import ServingEngine
from selfplay.errors import LearnersLost
from selfplay.learner import Trainer
from selfplay.learner.objective import Objective
from selfplay.rollout.rollout import RolloutFn
from selfplay.rollout.setup import RolloutSetup


class Runtime(Protocol):
    """Where rollouts and learners are."""

    max_staleness: int
    """Updates that what is learned from may lie behind; 0: every step waits for the one before."""
    device: str | None
    """Where the policies of this process are, if not where their settings say."""

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of where the run happens."""
        ...

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise ConfigError where the config asks for what is not there. Starts nothing."""
        ...

    def engine(self, config: Mapping[str, Any], players: RolloutSetup) -> ServingEngine:
        """What serves the policies, wherever that is; the first to be asked for."""
        ...

    def trainers(self, players: RolloutSetup, objective: Objective) -> Mapping[str, Trainer]:
        """One for every policy that learns; asked for once the policies are loaded."""
        ...

    def rollout_fn(self, players: RolloutSetup, evaluation: str | None = None) -> RolloutFn:
        """What plays the jobs of training, or of an evaluation; with a lag, from any thread."""
        ...

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """Put new learners in place of lost ones, to be told what to go on from.

        Args:
            lost: What became of them; RunError tells of it where there are no others to be had.
            saved: The checkpoint that will be restored, or None where nothing was learned yet.
        """
        ...

    def counts(self) -> dict[str, float]:
        """Figures of a step: those of services elsewhere, deaths, restarts and staleness."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...
