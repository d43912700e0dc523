"""vLLM: continuous batching with paged attention, for all policies of a run.

The engine is in this process; with `tensor_parallel` the shards of its model are in processes of
their own.

Policies with separate weights of one shape take turns in one vLLM engine. Their weights are copied
in when their turn begins; this takes less time than a step, and no memory for a second key-value
cache. Policies with adapters of one base share one engine at the same time.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from transformers import PreTrainedModel

from selfplay.engines import Engine, check_lengths
from selfplay.engines.published_weights import copy_published
from selfplay.engines.vllm.compat import import_vllm, require_vllm
from selfplay.engines.vllm.core import RANKS, RESERVED, CoreSettings, EngineCore
from selfplay.engines.vllm.served_policies import ServedPolicies, ServedPolicy, engine_key
from selfplay.engines.vllm.weight_update import rank_of
from selfplay.errors import ConfigError, RunError, nearest
from selfplay.types import Completion, Request, StopReason

EngineType: TypeAlias = Literal["auto", "float32", "bfloat16"]
"""Value of `engine.dtype`."""
AsyncScheduling: TypeAlias = bool | Literal["auto"]
"""Value of `engine.async_scheduling`."""
STRIDE = 16
"""Maximum number of tokens per request and step; a step returns earlier if a request finishes."""
OWN_KEYS = {
    "tensor_parallel_size": "tensor_parallel",
    "async_scheduling": "async_scheduling",
}
"""Keys of the engine by the reserved argument of vLLM that they set."""
LOWEST_TEMPERATURE = 0.01
"""Lowest temperature above 0: vLLM raises lower ones to it, and the learner would not know."""
TOLERANCE = {
    ("cpu", torch.float32): 1e-3,
    ("cpu", torch.bfloat16): 0.1,
    ("cuda", torch.float32): 1e-2,
}
"""Maximum mean difference of log-probabilities in nats by device and precision; else `ROUGH`.

Attention kernels of a GPU multiply float32 with fewer bits."""
ROUGH = 0.3
"""Maximum mean difference of log-probabilities in nats elsewhere."""


class VLLMEngine(Engine):
    """Serves several policies, with separate weights or with adapters, by vLLM 0.32.

    After every load of weights, log-probabilities are checked before the first token is sampled
    (`weight_check.WeightCheck`). A cached prefix is read only with the weights that wrote it; with
    `in_flight_updates`, completions that have begun keep their keys and values.
    """

    can_update_in_flight = True

    def __init__(
        self,
        *,
        max_rows: int = 256,
        prefill_tokens: int = 8192,
        max_length: int | None = None,
        memory: float | None = None,
        cache: float | None = None,
        eager: bool = False,
        adapters: int = 4,
        rank: int | None = None,
        sleep: bool = False,
        tensor_parallel: int = 1,
        dtype: EngineType = "auto",
        async_scheduling: AsyncScheduling = False,
        tolerance: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        max_rows: Maximum number of completions in flight.
        prefill_tokens: Maximum number of tokens per forward pass.
        max_length: Maximum number of tokens of a prompt and its completion; None: the model's
            limit.
        memory: Fraction of a GPU's memory for weights and key-value cache; None: 0.4, or, if no
            learner shares the GPU, all free memory except a tenth of the GPU's.
        cache: GiB of key-value cache per shard; None: the rest of `memory` on a GPU, 1 on a CPU.
            With a number vLLM takes what it needs, and `memory` is only the fraction of the GPU
            that must be free when it starts (None: 0.01).
        eager: True to run without CUDA graphs, which start slower and run faster.
        adapters: Maximum number of adapters in one forward pass; more can be served.
        rank: Largest rank of an adapter; None: the rank of the first one.
        sleep: True if the engine frees its memory while the learner uses the same GPU.
        tensor_parallel: Number of shards that every model is divided into, each in a process and on
            a GPU of its own (tensor parallelism). It must divide the model's attention heads.
        dtype: Type in which vLLM holds weights and computes; auto: that of the model, but bfloat16
            for a float32 model on a GPU.
        async_scheduling: True if vLLM starts a step before it has read the tokens of the step
            before, so that a GPU computes while this process works; auto: where vLLM can, which
            is not on a CPU. Samples are the same to rounding.
        tolerance: Maximum mean difference, in nats, between the log-probabilities of the engine
            and of the model; None: 1e-3 in float32 and 0.1 in bfloat16 on a CPU, 1e-2 in float32 on
            a GPU, else 0.3. After the first load it may be three times that load's difference.
        options: Further engine arguments of vLLM under their names there.

        Raises ConfigError if vLLM is missing, does not load, or does not fit torch or the machine.
        """
        least = {
            "max_rows": max_rows,
            "prefill_tokens": prefill_tokens,
            "adapters": adapters,
            "tensor_parallel": tensor_parallel,
        }
        for name, value in least.items():
            if value < 1:
                raise ConfigError(f"engine.{name}: must be at least 1, not {value}")
        for name, given in {"cache": cache, "tolerance": tolerance}.items():
            if given is not None and not given > 0:
                raise ConfigError(f"engine.{name}: must be above 0, not {given}")
        if max_length is not None and max_length < 2:
            raise ConfigError(f"engine.max_length: must be at least 2, not {max_length}")
        if memory is not None and not 0 < memory <= 1:
            raise ConfigError(f"engine.memory: must be above 0 and at most 1, not {memory}")
        if rank is not None and not 1 <= rank <= RANKS[-1]:
            raise ConfigError(f"engine.rank: must be between 1 and {RANKS[-1]}, not {rank}")
        if dtype not in get_args(EngineType):
            hint = nearest(str(dtype), get_args(EngineType))
            raise ConfigError(f"engine.dtype: unknown type {dtype!r}; {hint}")
        if async_scheduling not in (True, False, "auto"):
            raise ConfigError(
                f"engine.async_scheduling: must be true, false or auto, not {async_scheduling!r}"
            )
        _check_reserved(options or {})
        require_vllm(sleep=sleep, async_scheduling=async_scheduling is True)
        gpus = torch.cuda.device_count()
        if torch.cuda.is_available() and gpus < tensor_parallel:
            raise ConfigError(
                f"engine.tensor_parallel: {tensor_parallel} shards need as many GPUs, and "
                f"{gpus} can be used here; lower it"
            )
        _check_known(options or {})
        self._settings = CoreSettings(
            max_rows=max_rows,
            prefill_tokens=prefill_tokens,
            max_length=max_length,
            memory=memory,
            cache=cache,
            eager=eager,
            adapters=adapters,
            sleep=sleep,
            tensor_parallel=tensor_parallel,
            dtype=dtype,
            async_scheduling=async_scheduling,
            options=dict(options or {}),
        )
        self._rank, self._tolerance = rank, tolerance
        self._groups: dict[Hashable, ServedPolicies] = {}
        self._ended: list[Mapping[str, float]] = []
        """Metrics of the groups that ended since the last call of `drain_metrics`."""
        self._policies: dict[str, tuple[ServedPolicy, ServedPolicies]] = {}

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy from now on with its model's current weights.

        Raises ConfigError for a model that vLLM cannot serve, or computes with other results.
        """
        if policy in self._policies:
            self.withdraw(policy)
        where, rank, key = f"policy {policy!r}", rank_of(model), engine_key(model)
        if key not in self._groups:
            room = None if rank is None else max(rank, self._rank or 1)
            if room is not None and room > RANKS[-1]:
                raise ConfigError(f"{where}: vLLM serves adapters up to rank {RANKS[-1]}")
            host = EngineCore(
                model, self._settings, rank=room, where=where, own_gpu=self.has_own_gpu
            )
            self._groups[key] = ServedPolicies(host, room)
        group = self._groups[key]
        if rank is not None and rank > (group.rank or 0):
            raise ConfigError(
                f"{where}: its adapter has rank {rank}, above the engine's "
                f"{group.rank}; set engine.rank={rank}"
            )
        tolerance = self._tolerance
        if tolerance is None:
            kind = "cpu" if group.host.on_cpu else "cuda"
            tolerance = TOLERANCE.get((kind, group.host.dtype), ROUGH)
        shards = self._settings.tensor_parallel
        served = ServedPolicy(policy, model, end_ids, tolerance=tolerance, shards=shards)
        try:
            group.enter(served)
        except RunError as error:
            self._end_empty()
            raise ConfigError(
                f"{where}: vLLM cannot serve {type(model).__name__}: {error}; use "
                "engine=transformers"
            ) from error
        self._policies[policy] = (served, group)

    def withdraw(self, policy: str) -> None:
        """Stop serving a policy; raises RuntimeError while it has requests in flight."""
        self.release(policy)
        served, group = self._policies.pop(policy)
        group.leave(served)
        self._end_empty()

    def release(self, policy: str) -> None:
        """Raise RuntimeError while a policy has requests in flight; frees nothing."""
        if self._served(policy)[0].busy:
            raise RuntimeError(
                f"policy {policy!r} cannot be released or withdrawn: it has requests in flight"
            )

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Copy `weights` into the policy's model, unless they are the model's own tensors.

        vLLM loads them before the policy's next token and checks them; `step` raises RunError if
        they did not arrive. With `in_flight_updates`, completions in flight continue with the new
        weights and the older keys and values (PipelineRL, 2509.19128), and record the version of
        every token. Without it, raises RuntimeError while there are requests in flight.
        """
        served, _ = self._served(policy)
        if served.busy and not self.in_flight_updates:
            raise RuntimeError(f"policy {policy!r} got new weights with requests in flight")
        copy_published(weights, served.model)
        served.version, served.loaded = version, False

    def forget(self) -> None:
        """Read no cached prefixes of earlier requests from now on; requests may be in flight."""
        for group in self._groups.values():
            group.forget()

    def sleep(self) -> None:
        """Free the GPU's memory for the learners until the next request, if `sleep` is set.

        Raises RuntimeError while there are requests in flight.
        """
        if not self._settings.sleep:
            return
        if not all(group.idle for group in self._groups.values()):
            raise RuntimeError("an engine with requests in flight cannot sleep")
        for group in self._groups.values():
            group.sleep()

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises ConfigError if its policy's model cannot serve the request, and PromptTooLong if
        only the length of the prompt is the reason.
        """
        served, group = self._served(request.policy)
        check_lengths(request, min(group.host.limit, served.limit or group.host.limit))
        if 0 < request.temperature < LOWEST_TEMPERATURE:
            raise ConfigError(
                f"policy {request.policy!r}: vLLM samples at temperature 0, or at "
                f"{LOWEST_TEMPERATURE} and above, not at {request.temperature}"
            )
        served.queue(request)

    def step(self) -> list[Completion]:
        """Sample up to `STRIDE` tokens for every request in flight, fewer if some finish."""
        finished: list[Completion] = []
        for group in self._groups.values():
            for _ in range(STRIDE):
                if group.idle:
                    break
                if done := group.step():
                    finished += [_completion(*finish) for finish in done]
                    break
        return finished

    def waiting_ids(self) -> list[int]:
        """Return the ids of the requests that vLLM has not received yet."""
        return [number for served, _ in self._policies.values() for number in served.ids()]

    def drain_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call.

        `loads` is the number of weight loads, `loads_compared` the number of those whose sums of
        tensors were compared, `proof_difference` the largest difference of log-probabilities in
        their checks in nats, `prompt_tokens` the number of prompt tokens, and `cached_tokens` the
        number of those found in the prefix cache.
        """
        metrics: dict[str, float] = {}
        ended, self._ended = self._ended, []
        for found in (*ended, *(group.drain_metrics() for group in self._groups.values())):
            for name, value in found.items():
                known = metrics.get(name, 0.0)
                metrics[name] = max(known, value) if name == "proof_difference" else known + value
        return metrics

    def close(self) -> None:
        """End all vLLM engines and remove their temporary folders."""
        for served, _ in self._policies.values():
            served.folder.cleanup()
        for group in self._groups.values():
            group.host.close()
        self._groups.clear()
        self._policies.clear()

    def _served(self, policy: str) -> tuple[ServedPolicy, ServedPolicies]:
        if policy not in self._policies:
            hint = nearest(policy, self._policies)
            raise ConfigError(f"the engine serves no policy {policy!r}; {hint}")
        return self._policies[policy]

    def _end_empty(self) -> None:
        for key, group in list(self._groups.items()):
            if not group.all:
                del self._groups[key]
                self._ended.append(group.drain_metrics())
                group.host.close()


def _check_reserved(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument of vLLM that the engine sets itself."""
    for name in options:
        if name in OWN_KEYS:
            raise ConfigError(
                f"engine.options.{name}: the engine sets this argument itself; set "
                f"engine.{OWN_KEYS[name]}"
            )
        if name in RESERVED:
            raise ConfigError(f"engine.options.{name}: the engine sets this argument itself")


def _check_known(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument that vLLM does not have."""
    arguments = import_vllm().EngineArgs.__dataclass_fields__
    known = [name for name in arguments if not name.startswith("_")]
    for name in options:
        if name not in known:
            raise ConfigError(f"engine.options.{name}: unknown to vLLM; {nearest(name, known)}")


def _completion(served: ServedPolicy, request: Request, output: Any) -> Completion:
    """Return a policy's completion; raise RunError if vLLM aborted the request."""
    said = output.outputs[0]
    if said.finish_reason not in ("stop", "length"):
        raise RunError(f"vLLM aborted a request of policy {served.policy!r}: {said.finish_reason}")
    ids = tuple(said.token_ids)
    nats = [row[token].logprob for row, token in zip(said.logprobs, ids, strict=True)]
    if request.temperature == 0:  # greedy sampling has probability 1
        nats = [0.0] * len(ids)
    versions = served.versions(said.weight_versions)
    return Completion(
        id=request.id,
        completion_ids=ids,
        logprobs=tuple(nats),
        stop_reason=StopReason.STOP if said.finish_reason == "stop" else StopReason.LENGTH,
        version=versions[0][0],
        versions=versions if len(versions) > 1 else (),
    )
