"""Where a run happens: in this process, or on workers and learners of a cluster."""

from collections.abc import Mapping
from typing import Any, Protocol

from selfplay.engines import ServingEngine
from selfplay.learner import Trainer
from selfplay.learner.objective import Surrogate
from selfplay.players import Players
from selfplay.sampler import Play


class Runtime(Protocol):
    """Where rollouts and learners are."""

    max_lag: int
    """Updates that what is learned from may lie behind; 0: every step waits for the one before."""
    device: str | None
    """Where the policies of this process are, if not where their settings say."""

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise ConfigError where the config asks for what is not there. Starts nothing."""
        ...

    def engine(self, config: Mapping[str, Any], players: Players) -> ServingEngine:
        """What serves the policies, wherever that is; the first to be asked for."""
        ...

    def trainers(self, players: Players, objective: Surrogate) -> Mapping[str, Trainer]:
        """One for every policy that learns; asked for once the policies are loaded."""
        ...

    def play(self, players: Players, evaluation: str | None = None) -> Play:
        """What plays the jobs of training, or of an evaluation."""
        ...

    def counts(self) -> dict[str, float]:
        """Figures of a step: those of services elsewhere, deaths, restarts and staleness."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...
