"""What stands in the driver for the engines of its workers."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from selfplay.runtime.changes import Change, Publish, Release, Serve, Withdraw, pack
from selfplay.types import Completion, Request


class RemoteEngine:
    """A serving engine that samples nothing itself: every worker is told, and serves.

    Only what learns is sent: an adapter without its base, and nothing of a frozen policy, which
    every worker has read from the same files.
    """

    def __init__(self, *, tell: Callable[[Change], None], put: Callable[[Any], Any]) -> None:
        """Args:
        tell: Sends a change to all workers, those to come included.
        put: Makes an object known to the cluster; returns a reference to it.
        """
        self._tell, self._put = tell, put
        self._learned: dict[str, list[str]] = {}
        self.seconds = 0.0
        """Spent on publishing."""

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy: one of the run's, which workers load, or a copy of one."""
        player = policy.rpartition("@")[0]
        if player not in self._learned:
            named = model.named_parameters()
            self._learned[policy] = [name for name, tensor in named if tensor.requires_grad]
            return
        self._learned[policy] = self._learned[player]
        self._tell(Serve(policy=policy, player=player))
        self.publish(policy, model.state_dict(), 0)

    def withdraw(self, policy: str) -> None:
        """Serve a policy no longer, once no worker plays with it."""
        del self._learned[policy]
        self._tell(Withdraw(policy=policy))

    def release(self, policy: str) -> None:
        """Let workers give back what a policy only needs while it plays."""
        self._tell(Release(policy=policy))

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Send new weights; workers that play take them between two steps of their engines."""
        began = time.perf_counter()
        learned = self._learned[policy] if weights else []
        packed = self._put(pack(weights, learned)) if learned else None
        self._tell(Publish(policy=policy, weights=packed, version=version))
        self.seconds += time.perf_counter() - began

    def add(self, request: Request) -> None:
        """Nobody plays in the driver; raises RuntimeError."""
        raise RuntimeError(f"policy {request.policy!r} is served by workers, not by the driver")

    def step(self) -> list[Completion]:
        """Nothing is ever in flight here."""
        return []
