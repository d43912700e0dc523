"""The engine of the driver, which forwards policies and weights to the workers."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.engines import Engine
from selfplay.runtime.weight_sync import (
    AddPolicy,
    Change,
    OffloadPolicy,
    RemoteWeights,
    RemovePolicy,
    UpdateWeights,
    checksum,
    pack,
)
from selfplay.types import Completion, Request


class RemoteEngine(Engine):
    """Forwards policies and weights to the workers, whose engines sample.

    Only weights that learn are sent: of an adapter not its base, and of a frozen policy nothing,
    because every worker reads them from the same files. `RayRuntime` makes it; the training loop
    and the league publish to it.
    """

    def __init__(
        self,
        *,
        send: Callable[[Change], None],
        put: Callable[[Any], Any],
        dtype: torch.dtype | None = None,
        exact: bool = False,
    ) -> None:
        """Args:
        send: Sends an update to all present and future workers.
        put: Stores an object in the cluster and returns a reference to it.
        dtype: Type of the workers' models; None: that of each policy. Adapters keep theirs.
        exact: True if the workers' engines compute like the learner.
        """
        self.exact = exact
        self._send, self._put, self._dtype = send, put, dtype
        self._learned: dict[str, list[str]] = {}
        self.seconds = 0.0
        """Seconds spent in `publish` since they were last reset."""

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy: a snapshot, or a policy of the run, which workers load
        themselves."""
        player = policy.rpartition("@")[0]
        if player not in self._learned:
            named = model.named_parameters()
            self._learned[policy] = [name for name, tensor in named if tensor.requires_grad]
            return
        self._learned[policy] = self._learned[player]
        self._send(AddPolicy(policy=policy, player=player))
        self.publish(policy, model.state_dict(), 0)

    def withdraw(self, policy: str) -> None:
        """Stop serving a policy; workers first end the episodes in progress."""
        del self._learned[policy]
        self._send(RemovePolicy(policy=policy))

    def release(self, policy: str) -> None:
        """Let workers free the memory that a policy needs only while it samples."""
        self._send(OffloadPolicy(policy=policy))

    def publish(
        self, policy: str, weights: Mapping[str, Any] | RemoteWeights, version: int
    ) -> None:
        """Send new weights, which workers apply between two steps of their engines.

        Weights that are in the cluster's object store already do not pass through this process.
        """
        began = time.perf_counter()
        if not isinstance(weights, RemoteWeights):
            weights = self._stored(weights, self._learned[policy] if weights else [])
        self._send(
            UpdateWeights(
                policy=policy,
                weights=weights.packed,
                version=version,
                checksums=weights.checksums,
            )
        )
        self.seconds += time.perf_counter() - began

    def _stored(self, weights: Mapping[str, torch.Tensor], names: Sequence[str]) -> RemoteWeights:
        """Store the weights of these names; without names, there is nothing to send."""
        if not names:
            return RemoteWeights(packed=None, checksums={})
        adapter = any(".lora_" in name for name in names)
        dtype = None if adapter else self._dtype
        sent = {
            name: tensor.detach().to(dtype=dtype or tensor.dtype)
            for name, tensor in weights.items()
            if name in names
        }
        packed = pack(sent, names)
        checksums = {name: checksum(sent[name]) for name in names}
        return RemoteWeights(packed=self._put(packed), checksums=checksums)

    def add(self, request: Request) -> None:
        """Raise RuntimeError, because the driver samples nothing."""
        raise RuntimeError(f"policy {request.policy!r} is served by workers, not by the driver")

    def step(self) -> list[Completion]:
        """Return no completions, because no request is in flight in the driver."""
        return []
