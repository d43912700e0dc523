"""A trainer whose learners are ranks: shares of samples go out, weights come back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from selfplay.learner.objective import Surrogate, Totals
from selfplay.learner.sharded import learned
from selfplay.learner.shares import shares
from selfplay.learner.update import Updates
from selfplay.policy import Policy
from selfplay.reach import reach
from selfplay.runtime.rank import About
from selfplay.types import Sample


class Team(Protocol):
    """Ranks that are asked together."""

    count: int

    def ask(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """The answers of all ranks, in their order."""
        ...

    def ask_each(
        self, method: str, name: str, parts: Sequence[Any], *arguments: Any, **named: Any
    ) -> list[Any]:
        """The same, each with a part of its own behind the policy's name."""
        ...

    def put(self, value: Any) -> Any:
        """What all are to be sent, to be used in place of it."""
        ...


class RankedLearner(Updates):
    """Stands for a policy's learners on all ranks. After an update the policy has the weights."""

    def __init__(self, ranks: Team, policy: Policy, objective: Surrogate, about: About) -> None:
        """Args:
        ranks: Where it is learned.
        policy: Whose copy in this process follows.
        objective: What is maximised.
        about: As the ranks tell.
        """
        self.ranks, self.policy, self.objective = ranks, policy, objective
        self.mini_batches, self.seed = about.mini_batches, about.seed
        self.notes, self._packed = about.notes, about.packed
        self.longest = reach(policy.model).longest
        self._moved = False

    def update(self, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        """One pass over the samples; returns metrics. LearnersLost where a rank dies or hangs."""
        self._moved = False
        metrics = super().update(samples, step=step)
        if self._moved:
            weights, *_ = self.ranks.ask("weights", self.policy.name)
            with torch.no_grad():
                for name, parameter in learned(self.policy.model).items():
                    parameter.copy_(weights[name])
        return metrics

    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """[N][C] nats, each sample's by one of the ranks."""
        cut = shares(samples, self.ranks.count, packed=self._packed)
        parts = [[samples[index] for index in share] for share in cut]
        answers = self.ranks.ask_each("logprobs", self.policy.name, parts, reference=reference)
        found = {
            index: row
            for share, rows in zip(cut, answers, strict=True)
            for index, row in zip(share, rows, strict=True)
        }
        return [found[index] for index in range(len(samples))]

    def optimize(self, samples: Sequence[Sample], totals: Totals, *, step: int) -> dict[str, float]:
        """One optimizer step, to which each rank adds the gradient of its share."""
        cut = shares(samples, self.ranks.count, packed=self._packed)
        parts = [[samples[index] for index in share] for share in cut]
        self._moved = True
        found: dict[str, float]
        found, *_ = self.ranks.ask_each("optimize", self.policy.name, parts, totals, step=step)
        return found

    def follow(self) -> None:
        """Move the magnet."""
        self.ranks.ask("follow", self.policy.name)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Those of the policy in this process."""
        state: Mapping[str, torch.Tensor] = self.policy.model.state_dict()
        return state

    def begin_again(self) -> None:
        """Forget all but the weights that the policy has in this process."""
        self._send_weights()
        self.ranks.ask("begin_again", self.policy.name)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: see `save_shards`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the policy's weights and what a learner of one process has saved."""
        self._send_weights()
        self.ranks.ask("load_state", self.policy.name, self.ranks.put(state))

    def save_shards(self, folder: Path) -> dict[str, str]:
        """Have every rank write its part into a folder; hashes of all files by name."""
        answers = self.ranks.ask("save", self.policy.name, folder.resolve())
        return {name: found for each in answers for name, found in each.items()}

    def load_shards(self, folder: Path) -> None:
        """Go on with the policy's weights and what ranks of any number have written."""
        self._send_weights()
        self.ranks.ask("load", self.policy.name, folder.resolve())

    def _send_weights(self) -> None:
        weights = {
            name: parameter.detach().cpu() for name, parameter in learned(self.policy.model).items()
        }
        self.ranks.ask("take", self.policy.name, self.ranks.put(weights))
