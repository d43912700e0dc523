"""The driver's learner of a policy that ranks train: sends samples, receives weights."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from selfplay.learner.base_learner import BaseLearner
from selfplay.learner.fsdp import learned, partition_by_work
from selfplay.learner.objective import BatchCounts, Objective
from selfplay.models.policy import Policy
from selfplay.models.position_limits import reach
from selfplay.runtime.learner_worker import LearnerInfo
from selfplay.runtime.weight_sync import RemoteWeights, pack, unpack
from selfplay.types import Sample


class Ranks(Protocol):
    """Ranks that are called together."""

    count: int
    """Number of ranks."""

    def ask(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """Call a method on all ranks; return their results in order."""
        ...

    def ask_each(
        self, method: str, name: str, parts: Sequence[Any], *arguments: Any, **named: Any
    ) -> list[Any]:
        """Call a method on all ranks, each with its own part after the policy's name."""
        ...

    def ask_apart(self, method: str, *arguments: Any) -> tuple[Any, Any]:
        """Call a method on all ranks; it must yield two values.

        Returns the second value of the first rank, and a reference to its first value.
        """
        ...

    def ask_concurrently(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """Call a method on all ranks at the same time as their other work.

        Returns a function that waits for the results, in order. Any thread may call it.
        """
        ...

    def put(self, value: Any) -> Any:
        """Store a value that all ranks receive; return a reference for the arguments."""
        ...

    def read(self, reference: Any) -> Any:
        """Return the value of a reference."""
        ...


class DistributedLearner(BaseLearner):
    """Represents a policy's learners on all ranks in the driver.

    New weights go from the first rank to the workers. The driver's copy of the policy has them
    after `fetch_weights`.
    """

    def __init__(
        self,
        ranks: Ranks,
        policy: Policy,
        objective: Objective,
        about: LearnerInfo,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Args:
        ranks: The ranks that learn.
        policy: The driver's copy of the policy.
        objective: The objective, whose loss is minimised.
        about: Properties of the learner, from the ranks.
        dtype: Type of the weights in engines; None: that of the policy.
        """
        self.ranks, self.policy, self.objective = ranks, policy, objective
        self._dtype = None if policy.base is not None else dtype
        self.mini_batches, self.epochs, self.seed = about.mini_batches, about.epochs, about.seed
        self.notes, self._packed = about.notes, about.packed
        self.longest = reach(policy.model).longest
        self._unsent = self._unread = False
        """True after an optimizer step, until the weights are sent (`_unsent`), or until the driver
        reads them (`_unread`)."""

    def fetch_weights(self) -> None:
        """Copy the ranks' weights into the driver's copy of the policy, if they have changed."""
        if not self._unread:
            return
        _, reference = self.ranks.ask_apart("weights", self.policy.name)
        weights = unpack(self.ranks.read(reference))
        with torch.no_grad():
            for name, parameter in learned(self.policy.model).items():
                parameter.copy_(weights[name])
        self._unread = False

    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """Return [S, C] nats of each completion under the present weights, or under the reference.

        Each sample is computed by one rank.
        """
        cut = partition_by_work(samples, self.ranks.count, packed=self._packed)
        parts = [[samples[index] for index in indices] for indices in cut]
        answers = self.ranks.ask_each("logprobs", self.policy.name, parts, reference=reference)
        logprobs = {
            index: row
            for indices, rows in zip(cut, answers, strict=True)
            for index, row in zip(indices, rows, strict=True)
        }
        return [logprobs[index] for index in range(len(samples))]

    def optimize(
        self, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """Make one optimizer step with the sum of all ranks' gradients."""
        cut = partition_by_work(samples, self.ranks.count, packed=self._packed)
        parts = [[samples[index] for index in indices] for indices in cut]
        self._unsent = self._unread = True
        metrics: dict[str, float]
        metrics, *_ = self.ranks.ask_each("optimize", self.policy.name, parts, totals, step=step)
        return metrics

    def update_ema(self) -> None:
        """Update the EMA of the weights."""
        self.ranks.ask("update_ema", self.policy.name)

    def weights(self) -> Mapping[str, torch.Tensor] | RemoteWeights:
        """Return a reference to the weights, for workers; an empty mapping if they have not changed
        since they were last sent."""
        if not self._unsent:
            return {}
        checksums, packed = self.ranks.ask_apart("weights", self.policy.name, self._dtype)
        self._unsent = False
        return RemoteWeights(packed=packed, checksums=checksums)

    def begin_again(self) -> None:
        """Reset the learner's state; keep the weights of the driver's copy of the policy."""
        self._send_weights()
        self.ranks.ask("begin_again", self.policy.name)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dictionary; `save_shards` saves the state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the policy's weights and the saved state of a learner of one process."""
        self._send_weights()
        self.ranks.ask("load_state", self.policy.name, self.ranks.put(state))

    def save_shards(self, folder: Path) -> dict[str, str]:
        """Let every rank write its part into a folder; return the hashes of all files by name."""
        return _together(self.ranks.ask("save", self.policy.name, folder.resolve()))

    def begin_shards(self, folder: Path) -> Callable[[], dict[str, str]]:
        """Let every rank copy its part to main memory, and write the copy while it goes on.

        Returns a function that waits until the files are written, and returns their hashes by name.
        """
        self.ranks.ask("begin_save", self.policy.name, folder.resolve())
        written = self.ranks.ask_concurrently("end_save", self.policy.name)
        return lambda: _together(written())

    def load_shards(self, folder: Path) -> None:
        """Continue with the policy's weights and the state that any number of ranks wrote."""
        self._send_weights()
        self.ranks.ask("load", self.policy.name, folder.resolve())

    def _send_weights(self) -> None:
        weights = learned(self.policy.model)
        packed = self.ranks.put(pack(weights, weights.keys()))
        self.ranks.ask("take", self.policy.name, packed)
        self._unsent = self._unread = False


def _together(answers: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the hashes of the files of all ranks."""
    return {name: sha for hashes in answers for name, sha in hashes.items()}
