"""The runtime of one process that alternates between rollouts and learning."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from selfplay.engines import Engine
from selfplay.errors import ConfigError, LearnersLost, RunError
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Objective
from selfplay.models.policy import device_of
from selfplay.models.tree_attention import kernel_device_problem
from selfplay.rollout.policies import make_learners
from selfplay.rollout.rollout import RolloutFn
from selfplay.rollout.setup import RolloutSetup


class Local:
    """Runs everything in this process; the embedded engine samples with the learner's tensors."""

    max_staleness: int = 0
    device = None
    learner_device = None
    notes: Sequence[str] = ()

    def report_to(self, note: Callable[[str], None]) -> None:
        """Do nothing, because no other process can be lost."""

    def check(self, players: RolloutSetup) -> None:
        """Raise ConfigError if the engine cannot be built, if it refuses the model of a policy, or
        if a policy learns on a device for which its attention kernel has no code."""
        population = players.population
        population.check_served(self.engine(players))
        for name, learner in players.learner_settings.items():
            policy, own = population.policies[name], "attention" in population.learner_of(name)
            if not (learner.attention and policy.learn):
                continue
            device = device_of(policy.device, population.where(name))
            if reason := kernel_device_problem(learner.attention, device):
                key = f"population.overrides.{name}.learner" if own else "learner"
                raise ConfigError(f"{key}.attention: {reason}")

    def engine(self, players: RolloutSetup) -> Engine:
        """Return the engine of the config."""
        engine: Engine = players.build("engine")
        return engine

    def trainers(self, players: RolloutSetup, objective: Objective) -> Mapping[str, Learner]:
        """Return the learners of this process."""
        return make_learners(
            players.policies,
            settings=players.learner_settings,
            objective=objective,
            seed=players.seed,
        )

    def rollout_fn(self, players: RolloutSetup, evaluation: str | None = None) -> RolloutFn:
        """Return the `run` method of the rollout of training, or of an evaluation.

        This process then plays, so that the models of services are loaded.
        """
        players.load_services()
        return (players.rollout if evaluation is None else players.rollouts[evaluation]).run

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """Raise RunError: learners of this process cannot be replaced."""
        raise RunError(str(lost)) from lost

    def counts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass
