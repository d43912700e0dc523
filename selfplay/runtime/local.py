"""One process that plays and learns in turns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.config.instantiate import build
from selfplay.engines import ServingEngine
from selfplay.errors import LearnersLost, RunError
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Surrogate
from selfplay.rollout import policies
from selfplay.rollout.rollout import Play
from selfplay.rollout.setup import Players


class Local:
    """Everything in this process; the embedded engine samples from the learner's own tensors."""

    max_lag: int = 0
    device = None
    notes: Sequence[str] = ()

    def check(self, config: Mapping[str, Any]) -> None:
        """Build the engine, which has no policies yet."""
        build(config["engine"], where="engine")

    def engine(self, config: Mapping[str, Any], players: Players) -> ServingEngine:
        """The config's engine."""
        made: ServingEngine = build(config["engine"], where="engine")
        return made

    def trainers(self, players: Players, objective: Surrogate) -> Mapping[str, Learner]:
        """The learners themselves."""
        return policies.learners(
            players.population,
            players.policies,
            settings=players.config["learner"],
            objective=objective,
            seed=players.seed,
        )

    def play(self, players: Players, evaluation: str | None = None) -> Play:
        """The rollouts themselves."""
        return (players.rollout if evaluation is None else players.rollouts[evaluation]).play

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """This process cannot lose its learners and live."""
        raise RunError(str(lost)) from lost

    def counts(self) -> dict[str, float]:
        """Nothing but what the players count."""
        return {}

    def close(self) -> None:
        """Nothing was started."""
