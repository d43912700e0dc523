"""The embedded engine: continuous batching of a Hugging Face causal LM, on a CPU or a GPU.

Every distinct token is computed once (`selfplay.engines.policy_batch`), and each request has its
own random stream; requests join and leave between decoding steps. Adapters over one base, and
snapshots of them, share their passes (`selfplay.models.mixed_adapters`). The model must have
ordinary attention layers and no recurrent state. Rows of different lengths share one cache, so the
engine tests a model with a few short prompts before it serves it
(`selfplay.engines.serving_trial`): the log-probabilities must equal those of the model alone. Some
models can be served only with short rows (`selfplay.models.position_limits`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.engines import Engine
from selfplay.engines.policy_batch import PolicyBatch
from selfplay.engines.published_weights import copy_published
from selfplay.engines.serving_trial import mixing_problem, serving_problem
from selfplay.errors import ConfigError, DivergedError, nearest
from selfplay.models.mixed_adapters import adapter_layers, base_key
from selfplay.models.out_of_memory import explained
from selfplay.models.tree_attention import unordinary
from selfplay.types import Completion, Request


class TransformersEngine(Engine):
    """Serves several policies in this process, each with its own model."""

    exact = True
    can_update_in_flight = True

    def __init__(
        self,
        *,
        max_rows: int = 1024,
        prefill_tokens: int = 16_384,
        stride: int = 16,
        prefix_tokens: int = 65_536,
    ) -> None:
        """Args:
        max_rows: Maximum number of completions in flight per policy.
        prefill_tokens: Maximum number of prompt tokens per prefill, with padding, of all policies
            that share a pass.
        stride: Number of decoding steps after which requests can join.
        prefix_tokens: Maximum number of tokens per policy whose keys and values are kept for later
            prompts that begin with them, until the weights change or another rollout begins; 0
            keeps none.
        """
        if prefix_tokens < 0:
            raise ConfigError(f"engine.prefix_tokens: must be at least 0, not {prefix_tokens}")
        settings = {"max_rows": max_rows, "prefill_tokens": prefill_tokens, "stride": stride}
        for name, value in settings.items():
            if value < 1:
                raise ConfigError(f"engine.{name}: must be at least 1, not {value}")
        self._settings = {**settings, "prefix_tokens": prefix_tokens}
        self._batches: dict[str, PolicyBatch] = {}
        self._bases: dict[str, Hashable] = {}
        self._known: dict[str, str] = {}
        self._withdrawn: Counter[str] = Counter()

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy from now on with its model's own tensors.

        Args:
            policy: Its name.
            model: Its model; ConfigError if the engine cannot serve its attention.
            end_ids: The tokens that end a completion.
        """
        problem = self.refusal(model)
        try:
            if not problem and (reason := self._tried(model, serving_problem)):
                problem = _refusal(model, reason)
        except DivergedError as error:
            raise DivergedError(
                f"policy {policy!r}: its weights give probabilities that are not finite; use an "
                "earlier checkpoint"
            ) from error
        if problem:
            raise ConfigError(f"policy {policy!r}: {problem}")
        base = self._base(policy, model, end_ids)
        alike = self._alike(base)
        batch = self._batches[alike[0]] if alike else PolicyBatch(model, end_ids, **self._settings)
        batch.join(policy, model)
        self._batches[policy], self._bases[policy] = batch, base

    def refusal(self, model: PreTrainedModel) -> str:
        """Return the reason why the engine serves no model with these modules; empty if there is
        none. The weights are not read: they may have no data."""
        kind = unordinary(model)
        return _refusal(model, f"it has {kind}") if kind else ""

    def _base(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> Hashable:
        """Return a key of the policies that share passes with this one.

        It is the policy's name if its model computes rows of several adapters wrongly, such as a
        mixture of experts with adapters in the experts.
        """
        shared = base_key(model)
        if shared is None:
            return policy
        base = (shared, frozenset(end_ids))
        known = [self._batches[each].policies[each].model for each in self._alike(base)]
        if known and any(self._tried(each, mixing_problem) for each in (model, *known)):
            return policy
        return base

    def _alike(self, base: Hashable) -> list[str]:
        """Return the policies with a key."""
        return [policy for policy, known in self._bases.items() if known == base]

    def _tried(self, model: PreTrainedModel, problem: Callable[[PreTrainedModel], str]) -> str:
        """Return the reason why rows of a model cannot share a cache or a pass; empty if they can.

        Models with equal configs and adapters in the same layers are tested only once.
        """
        kernel = model.config._attn_implementation
        build = f"{type(model)} {kernel} {model.dtype} {model.device} {model.config!r}"
        build += f" {problem.__name__} {sorted(adapter_layers(model))}"
        if build not in self._known:
            self._known[build] = problem(model)
        return self._known[build]

    def withdraw(self, policy: str) -> None:
        """Stop serving a policy; raises RuntimeError while it has requests in flight."""
        self.release(policy)
        batch = self._batches.pop(policy)
        batch.leave(policy)
        del self._bases[policy]
        if batch not in self._batches.values():
            self._withdrawn.update(batch.counts)

    def release(self, policy: str) -> None:
        """Free the memory of a policy's keys and values until the policy's next request.

        Raises RuntimeError while it has requests in flight.
        """
        batch = self._batch(policy)
        if batch.policies[policy].busy:
            raise RuntimeError(
                f"policy {policy!r} cannot be released or withdrawn: it has requests in flight"
            )
        batch.release(policy)

    def forget(self) -> None:
        """Drop the keys, values and greedy completions that are kept for later requests."""
        for batch in self._distinct():
            batch.forget()

    def sleep(self) -> None:
        """Free the memory of the keys and values that are kept for later requests."""
        for batch in self._distinct():
            batch.sleep()

    def drain_metrics(self) -> Mapping[str, float]:
        """Return the numbers of tokens since the last call, summed over the policies.

        Policies that were withdrawn since then are included. `prompt_tokens` and
        `completion_tokens` are those of all requests, `cached_tokens` the prompt tokens whose keys
        and values were kept from earlier requests, `computed_tokens` the tokens in forward passes
        with padding, and `stored_tokens` the distinct tokens whose keys and values were kept for
        later requests.
        """
        found, self._withdrawn = self._withdrawn, Counter()
        for batch in self._distinct():
            found.update(batch.counts)
            batch.counts.clear()
        return found

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises ConfigError if its policy's model cannot serve the request, and PromptTooLong if
        only the length of the prompt is the reason.
        """
        self._batch(request.policy).add(request)

    def waiting_ids(self) -> list[int]:
        """Return the ids of the requests that wait for a place among `max_rows`."""
        return [
            number
            for batch in self._distinct()
            for policy in batch.policies.values()
            for number in policy.waiting.ids()
        ]

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Sample up to `stride` tokens for every request in flight; return the completions that
        ended.

        Raises DivergedError for probabilities that are not finite, and RunError if the GPU's memory
        is full.
        """
        with explained("sampling", "lower engine.max_rows or engine.prefill_tokens"):
            return [done for batch in self._distinct() for done in batch.step()]

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Copy `weights` into the policy's model, unless they are the model's own tensors.

        With `in_flight_updates`, completions in flight continue with the new weights and record
        the version of every token. Their keys and values stay those of the older weights
        (PipelineRL, 2509.19128), because new ones would cost a prefill of all completions in flight
        with every update. Without it, raises RuntimeError while there are requests in flight.
        """
        batch = self._batch(policy)
        served = batch.policies[policy]
        if served.busy and not self.in_flight_updates:
            raise RuntimeError(f"policy {policy!r} got new weights with requests in flight")
        copy_published(weights, served.model)
        batch.renew(policy, version)

    def _distinct(self) -> list[PolicyBatch]:
        """Return the batches; one of several policies is listed once."""
        return list(dict.fromkeys(self._batches.values()))

    def _batch(self, policy: str) -> PolicyBatch:
        if policy not in self._batches:
            hint = nearest(policy, self._batches)
            raise ConfigError(f"the engine serves no policy {policy!r}; {hint}")
        return self._batches[policy]


def _refusal(model: PreTrainedModel, reason: str) -> str:
    """Return the end of an error that refuses a model."""
    return (
        f"the transformers engine cannot serve {type(model).__name__}: {reason}; choose another "
        "model or another engine"
    )
