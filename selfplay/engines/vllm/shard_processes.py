"""The processes of a vLLM engine with tensor parallelism, one per shard of the model.

vLLM starts them (`MultiprocExecutor`) and ends them with the engine, or when this process dies.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.engines.vllm.shard_weights import EXTENSION
from selfplay.errors import ConfigError

RECORD = "\x1e"
"""First character of every record of the log."""
THREADS = "OMP_NUM_THREADS"
"""Environment variable with the number of threads of a process."""
EAGER = "TORCHDYNAMO_DISABLE"
"""Environment variable that turns off torch.compile, which needs a C++ compiler on a CPU."""
LONGEST = 300
"""Number of characters of an error that are shown."""


@dataclass(frozen=True, kw_only=True)
class DividedSizes:
    """Sizes of a model that tensor parallelism divides."""

    heads: int
    """Number of attention heads."""
    kv_heads: int
    """Number of key-value heads."""
    intermediate: int
    """Width of a layer's feed-forward part."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> "DividedSizes":
        """Return the sizes of a model. A size that its config does not name counts as divisible:
        vLLM then decides."""
        config = model.config.get_text_config()
        heads = int(getattr(config, "num_attention_heads", 0) or 0)
        return cls(
            heads=heads,
            kv_heads=int(getattr(config, "num_key_value_heads", 0) or heads),
            intermediate=int(getattr(config, "intermediate_size", 0) or 0),
        )

    def obstacle(self, shards: int) -> str | None:
        """Return the size that cannot be divided between this many shards, in words, or None.

        With fewer key-value heads than shards, several shards hold the same head.
        """
        if self.heads % shards:
            return f"{self.heads} attention heads"
        if self.kv_heads and self.kv_heads % shards and shards % self.kv_heads:
            return f"{self.kv_heads} key-value heads"
        if self.intermediate % shards:
            return f"intermediate size of {self.intermediate}"
        return None

    def check(self, shards: int, *, where: str) -> None:
        """Raise ConfigError if the model cannot be divided; the error names the next smaller
        number of shards that fits."""
        if obstacle := self.obstacle(shards):
            fewer = next(n for n in range(shards - 1, 0, -1) if self.obstacle(n) is None)
            raise ConfigError(
                f"engine.tensor_parallel: {where}: {shards} shards cannot divide its {obstacle}; "
                f"set engine.tensor_parallel={fewer}"
            )


def shard_arguments(shards: int, folder: Path) -> dict[str, Any]:
    """Return vLLM's arguments for an engine that is split into shards; errors go to a log in
    `folder`."""
    from vllm.config import LoggingConfig

    path = folder / "logging.json"
    handler = {"class": "logging.FileHandler", "filename": str(_log(folder)), "formatter": "one"}
    content = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"one": {"format": f"{RECORD}%(message)s"}},
        "handlers": {"log": {**handler, "delay": True}},
        "loggers": {"vllm": {"handlers": ["log"], "level": "ERROR", "propagate": False}},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return {
        "tensor_parallel_size": shards,
        "distributed_executor_backend": "mp",
        "worker_extension_cls": EXTENSION,
        "logging_config": LoggingConfig(pylogging_config_file=str(path)),
    }


def first_error(folder: Path) -> str | None:
    """Return the last line of the first error that a shard has logged, or None.

    vLLM's own error only says that a process failed. An error without a text, such as that of an
    assertion, is followed by the line of code that raised it.
    """
    if not _log(folder).is_file():
        return None
    text = _log(folder).read_text(encoding="utf-8", errors="replace")
    records = [record.strip() for record in text.split(RECORD)]
    first = next((record for record in records if record), None)
    if first is None:
        return None
    *earlier, line = (" ".join(line.split()) for line in first.splitlines())
    if ":" not in line:
        code = next((each for each in reversed(earlier) if each.strip("^~ ")), "")
        line = f"{line}: {code}"
    return "".join(character for character in line[:LONGEST] if character.isprintable())


@contextmanager
def environment_of_shards(shards: int, *, on_cpu: bool) -> Iterator[None]:
    """Set the environment variables of the shards that start in the context.

    The threads of this process are divided between them. On a CPU, where engines are eager, they
    compile nothing. At the end this process has its own number of threads again, which vLLM lowers.
    """
    own, set_threads = torch.get_num_threads(), torch.set_num_threads
    wanted = {THREADS: str(max(1, own // shards))} | ({EAGER: "1"} if on_cpu else {})
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        set_threads(own)


def _log(folder: Path) -> Path:
    return folder / "errors.log"
