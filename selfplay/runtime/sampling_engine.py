"""The engine of a driver whose episodes are sampled by the workers of each policy."""

from collections.abc import Callable
from typing import Any

import torch

from selfplay.runtime.remote_engine import RemoteEngine
from selfplay.runtime.sampling_worker_group import SamplingWorkers
from selfplay.types import Completion, Request


class SamplingEngine(RemoteEngine):
    """Sends each request, and the weights of each policy, to the workers that hold the policy.

    `RayRuntime` makes it where `runtime.workers` names policies; the driver's rollouts use it.
    """

    def __init__(
        self,
        workers: SamplingWorkers,
        *,
        put: Callable[[Any], Any],
        dtype: torch.dtype | None = None,
        exact: bool = False,
    ) -> None:
        """Args:
        workers: The workers.
        put: Stores an object in the cluster and returns a reference to it.
        dtype: Type of the workers' models; None: that of each policy. Adapters keep theirs.
        exact: True if the workers' engines compute like the learner.
        """
        super().__init__(send=workers.send, put=put, dtype=dtype, exact=exact)
        self._workers = workers

    def add(self, request: Request) -> None:
        """Queue a request for a worker of its policy."""
        self._workers.add(request)

    def step(self) -> list[Completion]:
        """Let workers with requests take a step; return the completions that ended."""
        return self._workers.step()

    def forget(self) -> None:
        """Begin a rollout: drop the requests of earlier ones."""
        self._workers.forget()
