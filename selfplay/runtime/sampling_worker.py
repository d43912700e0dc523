"""A sampling worker: a process whose engine answers the requests of the driver's episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from selfplay.errors import PromptTooLong
from selfplay.runtime.engine_worker import EngineWorker
from selfplay.types import Completion, Request, StopReason


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """The result of one engine step, which a worker returns to the driver."""

    completions: Sequence[Completion]
    """Completions that ended."""
    counts: Mapping[str, float]
    """Metrics of the engine by name, once no request is in flight; else empty."""


class SamplingWorker(EngineWorker):
    """Ray actor that holds the policies of its group and samples for the episodes of the driver.

    `SamplingWorkers` starts it and calls `sample` for every step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_flight: set[int] = set()

    def sample(self, requests: Sequence[Request], number: int, *, begins: bool) -> SampleResult:
        """Queue requests and take one step of the engine.

        Args:
            requests: New requests.
            number: Number of the update that must have arrived.
            begins: True for the first call of a rollout: earlier requests are completed, their
                completions are dropped, and all updates are applied.
        """
        if self._fault is not None:
            raise self._fault
        assert self._engine is not None and self._setup is not None
        self._inbox.wait(number, self._timeout)
        if begins:
            while self._in_flight:  # a rollout that failed has left them
                self._in_flight.difference_update(done.id for done in self._engine.step())
            self._engine.catch_up()
            self._engine.forget()
        completions = [answer for request in requests if (answer := self._queue(request))]
        if self._in_flight:
            sampled = self._engine.step()
            self._in_flight.difference_update(done.id for done in sampled)
            completions += sampled
        counts = {} if self._in_flight else self._setup.drain_counts()
        return SampleResult(completions=completions, counts=counts)

    def _queue(self, request: Request) -> Completion | None:
        """Queue a request; return its answer if the prompt is too long for the model."""
        assert self._engine is not None and self._setup is not None
        if request.stop:
            renderer = self._setup.policy_pool.renderers[request.policy]
            request = replace(request, decode=renderer.text)
        try:
            self._engine.add(request)
        except PromptTooLong as error:
            return Completion(
                id=request.id,
                completion_ids=(),
                logprobs=(),
                stop_reason=StopReason.LENGTH,
                too_long_reason=str(error),
            )
        self._in_flight.add(request.id)
        return None
