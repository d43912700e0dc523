"""The interface of runtimes, which run rollouts and learners in this process or on a cluster."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from selfplay.engines import Engine
from selfplay.errors import LearnersLost

if TYPE_CHECKING:  # modules of this package that start no model need no torch
    from selfplay.learner import PolicyLearner
    from selfplay.learner.objective import Objective
    from selfplay.rollout.rollout import RolloutFn
    from selfplay.rollout.setup import RolloutSetup


class Runtime(Protocol):
    """Runs the rollouts and learners of an experiment, which a config names as `runtime`."""

    max_staleness: int
    """Maximum number of updates between sampling and learning; 0: synchronous steps."""
    device: str | None
    """Device of the policies in this process; None: the device of their settings."""
    learner_device: str | None
    """Kind of device of learners in other processes, known after `engine`; None: that of the models
    in this process."""

    @property
    def notes(self) -> Sequence[str]:
        """Hints for the user about this runtime, one line each."""
        ...

    def report_to(self, note: Callable[[str], None]) -> None:
        """Show lines about lost processes through `note`, which any thread may call.

        Before this call, and without it, they go to standard error.
        """
        ...

    def check(self, players: "RolloutSetup") -> None:
        """Raise ConfigError if the config needs something that is missing; start nothing."""
        ...

    def engine(self, players: "RolloutSetup") -> Engine:
        """Return the engine that serves the policies; called before the other methods."""
        ...

    def trainers(
        self, players: "RolloutSetup", objective: "Objective"
    ) -> "Mapping[str, PolicyLearner]":
        """Return a learner for every policy that learns; called after the policies are loaded."""
        ...

    def rollout_fn(self, players: "RolloutSetup", evaluation: str | None = None) -> "RolloutFn":
        """Return the function that plays episodes of training, or of an evaluation.

        With `max_staleness` above 0, several threads may call it at once, and the engine must
        accept new weights and new policies, and withdraw or release idle ones, while it plays. No
        call of training begins during an evaluation, which waits for the end of the others.
        """
        ...

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """Replace lost learners by new ones, whose state the caller restores.

        Args:
            lost: The reason of the loss.
            saved: The checkpoint that will be restored; None if nothing was learned yet.

        Raises RunError, with the reason of the loss, if no learners can be started.
        """
        ...

    def counts(self) -> dict[str, float]:
        """Return the metrics of workers and learners since the last call, such as deaths.

        The number of restarts of learners is a total since the runtime began.
        """
        ...

    def close(self) -> None:
        """End the processes that the runtime started."""
        ...
