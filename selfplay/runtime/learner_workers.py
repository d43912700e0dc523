"""The learner ranks of a run, seen from the driver: started, asked and ended together.

A trainer whose learners are ranks: shares of samples go out, weights come back.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from selfplay.errors import LearnersLost, RunError, SelfplayError, one_line
from selfplay.learner.fsdp import learned, partition_by_work
from selfplay.learner.learner import BaseLearner
from selfplay.learner.objective import BatchCounts, Objective
from selfplay.learner.process_group import Precision
from selfplay.models.policy import Policy
from selfplay.models.position_limits import reach
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.cluster import TICK, RayCluster
from selfplay.runtime.learner_worker import LearnerConfig, LearnerInfo, LearnerWorker
from selfplay.types import Sample


class WorkerGroup(Protocol):
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


class DistributedLearner(BaseLearner):
    """Stands for a policy's learners on all ranks. After an update the policy has the weights."""

    def __init__(
        self, ranks: WorkerGroup, policy: Policy, objective: Objective, about: LearnerInfo
    ) -> None:
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
        cut = partition_by_work(samples, self.ranks.count, packed=self._packed)
        parts = [[samples[index] for index in share] for share in cut]
        answers = self.ranks.ask_each("logprobs", self.policy.name, parts, reference=reference)
        found = {
            index: row
            for share, rows in zip(cut, answers, strict=True)
            for index, row in zip(share, rows, strict=True)
        }
        return [found[index] for index in range(len(samples))]

    def optimize(
        self, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """One optimizer step, to which each rank adds the gradient of its share."""
        cut = partition_by_work(samples, self.ranks.count, packed=self._packed)
        parts = [[samples[index] for index in share] for share in cut]
        self._moved = True
        found: dict[str, float]
        found, *_ = self.ranks.ask_each("optimize", self.policy.name, parts, totals, step=step)
        return found

    def update_ema(self) -> None:
        """Move the EMA."""
        self.ranks.ask("update_ema", self.policy.name)

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


LEARN, LISTEN = "learn", "listen"
"""The threads of a rank."""
GRACE = 5.0
"""Seconds in which who is alive says so, and in which the cause of a fault comes behind its effect
on others."""


class LearnerWorkerGroup:
    """Actors that live and die together: a rank that waits for a dead one is of no more use."""

    def __init__(
        self,
        cluster: RayCluster,
        *,
        first: int,
        count: int,
        gpu: bool,
        precision: Precision,
        timeout: float,
        max_restarts: int,
    ) -> None:
        """Args:
        cluster: Where they are.
        first: Index of the first one's bundle; those of the others come behind it.
        count: How many there are. One learns as a learner of this process would.
        gpu: Whether each has a GPU.
        precision: What forward and backward passes compute in.
        timeout: Seconds of every wait.
        max_restarts: Losses since the last checkpoint that are borne.
        """
        self.cluster, self.first, self.count = cluster, first, count
        self.gpu, self.precision = gpu, precision
        self.timeout, self.max_restarts = timeout, max_restarts
        self._actors: list[Any] = []
        self._borne = self._restarts = 0
        self._since: Path | None = None

    def trainers(
        self, players: RolloutSetup, objective: Objective
    ) -> dict[str, DistributedLearner]:
        """Start the ranks; one trainer for every policy that learns."""
        self._players, self._objective = players, objective
        about = self._begin(players.saved)
        return {
            name: DistributedLearner(self, players.policies[name], objective, each)
            for name, each in about.items()
        }

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """New ranks in place of lost ones. They know what a run begins with, or a checkpoint does.

        Raises RunError if that happens over and over again with no checkpoint in between.
        """
        if saved != self._since:
            self._borne, self._since = 0, saved
        self._bear(lost)
        self._begin(saved)

    def ask(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """The answers of all ranks, in their order.

        Raises what a rank raised of our own errors, and LearnersLost where one dies, breaks or is
        not done in time; the others are ended with it.
        """
        return self._ask(method, [arguments] * self.count, named)

    def ask_each(
        self, method: str, name: str, parts: Sequence[Any], *arguments: Any, **named: Any
    ) -> list[Any]:
        """The same, each with a part of its own behind the policy's name."""
        return self._ask(method, [(name, part, *arguments) for part in parts], named)

    def put(self, value: Any) -> Any:
        """What all are to be sent, written once per machine."""
        return self.cluster.put(value)

    def counts(self) -> dict[str, float]:
        """How often all ranks were started again, so far."""
        return {"runtime/learner_restarts": float(self._restarts)}

    def close(self) -> None:
        """End them all."""
        actors, self._actors = self._actors, []
        for actor in actors:
            self.cluster.kill(actor)

    def _begin(self, saved: Path | None) -> dict[str, LearnerInfo]:
        while True:
            try:
                return self._start(saved)
            except LearnersLost as lost:
                self._bear(lost)

    def _bear(self, lost: LearnersLost) -> None:
        """Count a loss."""
        self._borne += 1
        if self._borne > self.max_restarts:
            raise RunError(
                f"runtime: the learners were lost {self._borne} times with no checkpoint in "
                f"between (runtime.max_restarts is {self.max_restarts}); the last time: {lost}"
            ) from lost
        self._restarts += 1

    def _start(self, saved: Path | None) -> dict[str, LearnerInfo]:
        self.close()
        self._actors = [
            self.cluster.actor(
                LearnerWorker, bundle=self.first + rank, groups={LEARN: 1, LISTEN: 1}
            )
            for rank in range(self.count)
        ]
        alone = self.count == 1
        if not alone or self.precision != "float32":
            place, *_ = self._ask("open", [(self.timeout,)], {})
            each = [(rank, self.count, place, self.timeout, self.gpu) for rank in range(self.count)]
            self._ask("join", each, {})
        setup = LearnerConfig(
            config=self._players.config,
            objective=self._objective,
            saved=saved,
            precision=self.precision,
            gpu=self.gpu,
            # One rank computes as this process would; several have the cores set aside for them.
            threads=torch.get_num_threads() if alone else 0,
            host=socket.gethostname(),
        )
        about: dict[str, LearnerInfo]
        about, *_ = self.ask("begin", setup)
        return about

    def _ask(
        self, method: str, each: Sequence[tuple[Any, ...]], named: Mapping[str, Any]
    ) -> list[Any]:
        """Ask the first ranks, one with each tuple of arguments."""
        if not self._actors:
            raise LearnersLost("the learner ranks were ended")
        refs = [
            getattr(actor, method).options(concurrency_group=LEARN).remote(*arguments, **named)
            for actor, arguments in zip(self._actors, each, strict=False)
        ]
        found: dict[int, Any] = {}
        faults: dict[int, Exception] = {}
        end = time.monotonic() + self.timeout
        while len(found) + len(faults) < len(refs) and time.monotonic() < end:
            waiting = [ref for rank, ref in enumerate(refs) if rank not in {*found, *faults}]
            left = max(0.0, end - time.monotonic())
            ready, _ = self.cluster.ray.wait(waiting, timeout=min(TICK, left))
            self.cluster.check()
            for ref in ready:
                try:
                    found[refs.index(ref)] = self.cluster.ray.get(ref)
                except self.cluster.ray.exceptions.RayError as error:
                    faults[refs.index(ref)] = error
                    end = min(end, time.monotonic() + GRACE)
        if len(found) == len(refs):
            return [found[rank] for rank in range(len(refs))]
        self.cluster.check(now=True)
        silent = [] if faults else self._silent()
        self.close()
        raise self._fault(method, faults, silent, [r for r in range(len(refs)) if r not in found])

    def _silent(self) -> list[int]:
        """The ranks that do not even say that they are there."""
        questions = [
            actor.alive.options(concurrency_group=LISTEN).remote() for actor in self._actors
        ]
        said, _ = self.cluster.ray.wait(questions, num_returns=len(questions), timeout=GRACE)
        return [rank for rank, question in enumerate(questions) if question not in said]

    def _fault(
        self,
        method: str,
        faults: Mapping[int, Exception],
        silent: Sequence[int],
        waiting: Sequence[int],
    ) -> Exception:
        """The one error that tells of it: our own as it was, then deaths, then what broke."""
        broken = self.cluster.ray.exceptions.RayTaskError
        causes = {rank: getattr(error, "cause", None) for rank, error in faults.items()}
        for cause in causes.values():
            if isinstance(cause, SelfplayError):
                return cause
        for rank, error in faults.items():
            if not isinstance(error, broken):
                return LearnersLost(f"learner rank {rank} died ({method}): {one_line(error)}")
        for rank, error in faults.items():
            why = one_line(causes[rank] or error)
            return LearnersLost(f"learner rank {rank} broke ({method}): {why}")
        late = silent or waiting
        names = "rank " + ", ".join(map(str, late)) if len(late) == 1 else f"ranks {list(late)}"
        what = "says nothing" if silent else "is not done"
        return LearnersLost(
            f"learner {names} {what} after {self.timeout:g} s ({method}); runtime.timeout is how "
            "long that may take"
        )
