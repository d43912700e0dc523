"""The interface of all engines, which turn requests into completions."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from selfplay.errors import ConfigError, PromptTooLong
from selfplay.types import Completion, Request, role_of

if TYPE_CHECKING:  # a scripted engine needs no torch
    from transformers import PreTrainedModel

    from selfplay.models.renderer import Renderer


class Engine:
    """Samples completions for one or several policies.

    A config names the engine of a run (`engine`) and of each opponent (`population.opponents`).
    The rollout calls `add` for every request, then `step` until all completions are there. A run
    calls `serve`, `publish`, `withdraw` and `release` for its policies and their snapshots.

    An engine of yours overrides `add` and `step`, and those defaults that do not fit.
    """

    renderer: "Renderer | None" = None
    """Renderer of the requests for an engine without a tokenizer; None: that of the policy."""
    exact: bool = False
    """True if the engine computes like the learner: both give the same log-probabilities."""
    can_update_in_flight: ClassVar[bool] = False
    """True if the engine supports `in_flight_updates`."""
    in_flight_updates: bool = False
    """True if completions in flight continue with new weights; else `publish` raises RuntimeError
    while there are any."""
    has_own_gpu: bool = False
    """True if no learner computes on the GPU of this engine. The runtime sets it."""

    def add(self, request: Request) -> None:
        """Queue a request."""
        raise NotImplementedError(f"{type(self).__name__}.add")

    def step(self) -> list[Completion]:
        """Do some work and return the completions that finished, possibly none.

        After `rollout.patience` steps without a completion, the rollout ends with an error. Steps
        while an engine is `awaiting` do not count.
        """
        raise NotImplementedError(f"{type(self).__name__}.step")

    @property
    def awaiting(self) -> bool:
        """True while the engine waits for an answer from elsewhere, such as an endpoint's.

        Such an engine has a time limit of its own: its `step` raises an error if an answer takes
        too long. It waits a moment in each step.
        """
        return False

    def waiting_ids(self) -> Collection[int]:
        """Return the ids of the requests that wait because the batch is full; none by default."""
        return ()

    def serve(self, policy: str, model: "PreTrainedModel", end_ids: Sequence[int]) -> None:
        """Serve one more policy from now on.

        Args:
            policy: Its name.
            model: Its model with the current weights.
            end_ids: The tokens that end a completion.

        Raises ConfigError if the engine cannot serve the model.
        """
        raise ConfigError(
            f"engine: {type(self).__name__} serves no models, so it cannot serve policy "
            f"{policy!r}; choose another engine, such as engine=transformers"
        )

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Sample a policy's completions with new weights from now on.

        Args:
            policy: Its name.
            weights: A state dictionary, or another object that `PolicyLearner.weights` returned and
                this engine reads.
            version: Number of updates of these weights; completions record it.

        Raises ConfigError if the engine samples no policy that learns.
        """
        raise ConfigError(
            f"policy {policy!r} is played by {type(self).__name__}, which cannot be trained"
        )

    def withdraw(self, policy: str) -> None:
        """Stop serving a policy; raises RuntimeError while it has requests in flight."""

    def release(self, policy: str) -> None:
        """Free the memory that a policy needs only while it samples: its key-value cache."""

    def forget(self) -> None:
        """Drop the data of earlier requests that only serve to answer later ones faster.

        Every rollout calls this method first, so that its results do not depend on earlier
        rollouts, to the last bit: a resumed run and a worker compute what one process would have
        computed without an interruption. Requests may be in flight.
        """

    def sleep(self) -> None:
        """Give the memory of a shared device to the learners until the next request."""

    def drain_metrics(self) -> Mapping[str, float]:
        """Return metrics by name, counted since the last call; the rollout writes them."""
        return {}

    def close(self) -> None:
        """End processes and connections."""


def check_lengths(request: Request, limit: int | None, reason: str = "") -> None:
    """Raise ConfigError or PromptTooLong for a request that its policy's model cannot serve.

    Args:
        request: The request; ConfigError for an empty prompt or a wrong `max_tokens`.
        limit: Maximum number of tokens of a prompt and its completion; None: no limit.
        reason: Explanation of the limit for the error message, such as " (it has a window)".
    """
    where = f"policy {request.policy!r}"
    prompt, new = len(request.prompt_ids), request.max_tokens
    if not prompt:
        raise ConfigError(f"{where}: {request.agent} got an empty prompt")
    if new < 1:
        raise ConfigError(f"{where}: max_tokens must be at least 1, not {new}")
    if limit is None:
        return
    if new >= limit:
        raise ConfigError(
            f"{where}: max_tokens {new} leaves no room for a prompt in the model's {limit}{reason}"
        )
    if prompt + new > limit:
        key = f"sampling.{role_of(request.agent) or 'default'}.max_tokens"
        lower = f"lower {key} (or that of default), " if prompt < limit else ""
        raise PromptTooLong(
            f"{where}: prompt of {prompt} tokens plus {new} new ones exceeds the model's "
            f"{limit}{reason}; {lower}shorten the prompt, or choose a model with a longer context"
        )
