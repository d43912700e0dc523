"""vLLM in this process: continuous batching with paged attention, for all policies of a run.

Policies with weights of their own and of one shape take turns in one vLLM engine: their weights
are copied in when their turn comes, which costs less than a step, and no memory for another
key-value cache. Policies with adapters over one base are in one engine together.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.engines.vllm.compat import import_vllm, require_vllm
from selfplay.engines.vllm.core import OURS, RANKS, CoreSettings, EngineCore
from selfplay.engines.vllm.policies import ServedPolicies, ServedPolicy, place_of, rank_of
from selfplay.errors import ConfigError, PromptTooLong, RunError, nearest
from selfplay.types import Completion, Request, StopReason

STRIDE = 16
"""Tokens of everything in flight after which a step returns, if nothing finished before."""
COOLEST = 0.01
"""vLLM raises temperatures between 0 and this one to it, and the learner would not know."""
TOLERANCE = {torch.float32: 1e-3}
"""Mean difference of log-probabilities that is allowed, by precision; else `ROUGH`."""
ROUGH = 0.1


class VLLMEngine:
    """Serves several policies, with weights of their own or adapters, by vLLM 0.32.

    Every load of weights is proved by log-probabilities before a token is sampled with them; see
    `proof.Proof`. No prefix is read with other weights than those that wrote it, but by completions
    that have begun, where `partial`.
    """

    def __init__(
        self,
        *,
        max_rows: int = 256,
        prefill_tokens: int = 8192,
        max_length: int | None = None,
        memory: float = 0.4,
        cache: float | None = None,
        eager: bool = False,
        adapters: int = 4,
        rank: int | None = None,
        sleep: bool = False,
        tolerance: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        max_rows: Completions decoded at once.
        prefill_tokens: Tokens of one forward pass.
        max_length: Most tokens of a prompt and its completion; None: what the model can read.
        memory: Share of a GPU's memory for weights and key-value cache.
        cache: GiB of key-value cache; None: on a GPU what `memory` leaves, on a CPU 1.
        eager: Whether to do without CUDA graphs, with which it starts slower and runs faster.
        adapters: Adapters that one forward pass can have; there may be more.
        rank: Largest rank of an adapter; None: that of the first.
        sleep: Whether it gives its memory to the learner while that learns, on one GPU.
        tolerance: Largest mean difference, in nats, between its log-probabilities and the model's;
            None: 1e-3 in float32, 0.1 in lower precision.
        options: More of vLLM's engine arguments, by their names there.

        Raises ConfigError where vLLM is missing, does not load, or does not fit torch or the
        machine.
        """
        least = {"max_rows": max_rows, "prefill_tokens": prefill_tokens, "adapters": adapters}
        for name, value in least.items():
            if value < 1:
                raise ConfigError(f"engine.{name}: must be at least 1, not {value}")
        for name, given in {"cache": cache, "tolerance": tolerance}.items():
            if given is not None and not given > 0:
                raise ConfigError(f"engine.{name}: must be above 0, not {given}")
        if max_length is not None and max_length < 2:
            raise ConfigError(f"engine.max_length: must be at least 2, not {max_length}")
        if not 0 < memory <= 1:
            raise ConfigError(f"engine.memory: a share above 0 and up to 1, not {memory}")
        if rank is not None and not 1 <= rank <= RANKS[-1]:
            raise ConfigError(f"engine.rank: lies within 1 and {RANKS[-1]}, not at {rank}")
        for name in options or {}:
            if name in OURS:
                raise ConfigError(f"engine.options.{name}: the engine sets that itself")
        require_vllm(sleep=sleep)
        arguments = import_vllm().EngineArgs.__dataclass_fields__  # told of now if it does not load
        known = [name for name in arguments if not name.startswith("_")]
        for name in options or {}:
            if name not in known:
                raise ConfigError(f"engine.options.{name}: vLLM has none; {nearest(name, known)}")
        self._settings = CoreSettings(
            max_rows=max_rows,
            prefill_tokens=prefill_tokens,
            max_length=max_length,
            memory=memory,
            cache=cache,
            eager=eager,
            adapters=adapters,
            sleep=sleep,
            options=dict(options or {}),
        )
        self._rank, self._tolerance = rank, tolerance
        self.partial = False
        """Whether completions in flight go on under new weights."""
        self._places: dict[Hashable, ServedPolicies] = {}
        self._tenants: dict[str, tuple[ServedPolicy, ServedPolicies]] = {}

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy from now on, with its model's present weights.

        Raises ConfigError for a model that vLLM cannot serve, or computes otherwise.
        """
        if policy in self._tenants:
            self.withdraw(policy)
        where, rank, place = f"policy {policy!r}", rank_of(model), place_of(model)
        if place not in self._places:
            room = None if rank is None else max(rank, self._rank or 1)
            if room is not None and room > RANKS[-1]:
                raise ConfigError(f"{where}: vLLM serves adapters up to rank {RANKS[-1]}")
            host = EngineCore(model, self._settings, rank=room, where=where)
            self._places[place] = ServedPolicies(host, room)
        tenants = self._places[place]
        if rank is not None and rank > (tenants.rank or 0):
            raise ConfigError(
                f"{where}: its adapter has rank {rank}, and the engine was made for "
                f"{tenants.rank}; set engine.rank={rank}"
            )
        tolerance = self._tolerance
        if tolerance is None:
            tolerance = TOLERANCE.get(model.dtype, ROUGH)
        tenant = ServedPolicy(policy, model, end_ids, tolerance=tolerance)
        try:
            tenants.enter(tenant)
        except RunError as error:
            self._end_empty()
            raise ConfigError(
                f"{where}: vLLM cannot serve {type(model).__name__}: {error}; use "
                "engine=transformers"
            ) from error
        self._tenants[policy] = (tenant, tenants)

    def withdraw(self, policy: str) -> None:
        """Serve a policy no longer; raises RuntimeError while it has requests in flight."""
        self.release(policy)
        tenant, tenants = self._tenants.pop(policy)
        tenants.leave(tenant)
        self._end_empty()

    def release(self, policy: str) -> None:
        """Nothing is given back, the cache is everybody's; RuntimeError as `withdraw`."""
        if self._found(policy)[0].busy:
            raise RuntimeError(f"policy {policy!r} withdrawn with requests in flight")

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Copy `weights` into the policy's model, unless they are the model's own tensors.

        Before the next token of this policy vLLM takes them over, and that is proved: step raises
        RunError where they do not arrive. Where `partial`, completions that have begun go on with
        them, over the keys and values of those before (PipelineRL, 2509.19128), and are stamped
        with the version of every token. Elsewhere RuntimeError while there are any.
        """
        tenant, _ = self._found(policy)
        if tenant.busy and not self.partial:
            raise RuntimeError(f"policy {policy!r} got new weights with requests in flight")
        own = tenant.model.state_dict()
        with torch.no_grad():
            for name, tensor in weights.items():
                if own[name].data_ptr() != tensor.data_ptr():
                    own[name].copy_(tensor)
        tenant.version, tenant.loaded = version, False

    def rest(self) -> None:
        """Give a GPU's memory to the learner until the next request, if `sleep` is set.

        Raises RuntimeError with requests in flight.
        """
        if not self._settings.sleep:
            return
        if not all(tenants.idle for tenants in self._places.values()):
            raise RuntimeError("an engine that is to sleep has requests in flight")
        for tenants in self._places.values():
            tenants.rest()

    def add(self, request: Request) -> None:
        """Queue a request; raises ConfigError for one that its policy's model cannot serve, and
        PromptTooLong where only its prompt is at fault."""
        tenant, tenants = self._found(request.policy)
        where, limit = f"policy {request.policy!r}", tenants.host.limit
        prompt, new = len(request.prompt_ids), request.max_tokens
        if not prompt:
            raise ConfigError(f"{where}: {request.agent} got an empty prompt")
        if new < 1:
            raise ConfigError(f"{where}: max_tokens must be at least 1, not {new}")
        if 0 < request.temperature < COOLEST:
            raise ConfigError(
                f"{where}: vLLM samples at temperature 0, or at {COOLEST} and above, not at "
                f"{request.temperature}"
            )
        if new >= limit:
            raise ConfigError(
                f"{where}: max_tokens {new} leaves no room for a prompt in the model's {limit}"
            )
        if prompt + new > limit:
            raise PromptTooLong(
                f"{where}: prompt of {prompt} tokens plus {new} new ones exceeds the model's "
                f"{limit}; lower max_tokens or shorten the prompt"
            )
        tenant.queue(request)

    def step(self) -> list[Completion]:
        """Up to `STRIDE` tokens for every request in flight, fewer where some finish."""
        finished: list[Completion] = []
        for tenants in self._places.values():
            for _ in range(STRIDE):
                if tenants.idle:
                    break
                if done := tenants.step():
                    finished += [_completion(*each) for each in done]
                    break
        return finished

    def drain_counts(self) -> dict[str, float]:
        """Since the last call: loads of weights, the largest difference in their proofs in nats,
        prompt tokens, and those of them that the prefix cache had."""
        found: dict[str, float] = {}
        for tenants in self._places.values():
            for name, value in tenants.drain_counts().items():
                known = found.get(name, 0.0)
                found[name] = max(known, value) if name == "proof_difference" else known + value
        return found

    def close(self) -> None:
        """End all engines of vLLM, and remove what they read."""
        for tenant, _ in self._tenants.values():
            tenant.folder.cleanup()
        for tenants in self._places.values():
            tenants.host.close()
        self._places.clear()
        self._tenants.clear()

    def _found(self, policy: str) -> tuple[ServedPolicy, ServedPolicies]:
        if policy not in self._tenants:
            hint = nearest(policy, self._tenants)
            raise ConfigError(f"the engine serves no policy {policy!r}; {hint}")
        return self._tenants[policy]

    def _end_empty(self) -> None:
        for place, tenants in list(self._places.items()):
            if not tenants.all:
                del self._places[place]
                tenants.host.close()


def _completion(tenant: ServedPolicy, request: Request, output: Any) -> Completion:
    """What the policy said; raises RunError where vLLM gave up."""
    said = output.outputs[0]
    if said.finish_reason not in ("stop", "length"):
        raise RunError(f"vLLM gave up a request of policy {tenant.policy!r}: {said.finish_reason}")
    ids = tuple(said.token_ids)
    nats = [row[token].logprob for row, token in zip(said.logprobs, ids, strict=True)]
    if request.temperature == 0:  # greedy says it for certain
        nats = [0.0] * len(ids)
    versions = tenant.versions(said.weight_versions)
    return Completion(
        id=request.id,
        completion_ids=ids,
        logprobs=tuple(nats),
        stop_reason=StopReason.STOP if ids[-1] in tenant.end_ids else StopReason.LENGTH,
        version=versions[0][0],
        versions=versions if len(versions) > 1 else (),
    )
