"""One process that plays and learns in turns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.config.instantiate import build
from selfplay.engines import ServingEngine
from selfplay.errors import LearnersLost, RunError
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Objective
from selfplay.rollout import policies
from selfplay.rollout.rollout import RolloutFn
from selfplay.rollout.setup import RolloutSetup


class Local:
    """Everything in this process; the embedded engine samples from the learner's own tensors."""

    max_staleness: int = 0
    device = None
    notes: Sequence[str] = ()

    def check(self, config: Mapping[str, Any]) -> None:
        """Build the engine, which has no policies yet."""
        build(config["engine"], where="engine")

    def engine(self, config: Mapping[str, Any], players: RolloutSetup) -> ServingEngine:
        """The config's engine."""
        made: ServingEngine = build(config["engine"], where="engine")
        return made

    def trainers(self, players: RolloutSetup, objective: Objective) -> Mapping[str, Learner]:
        """The learners themselves."""
        return policies.learners(
            players.population,
            players.policies,
            settings=players.config["learner"],
            objective=objective,
            seed=players.seed,
        )

    def rollout_fn(self, players: RolloutSetup, evaluation: str | None = None) -> RolloutFn:
        """The rollouts themselves."""
        return (players.rollout if evaluation is None else players.rollouts[evaluation]).run

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """This process cannot lose its learners and live."""
        raise RunError(str(lost)) from lost

    def counts(self) -> dict[str, float]:
        """Nothing but what the players count."""
        return {}

    def close(self) -> None:
        """Nothing was started."""
