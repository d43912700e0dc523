"""Faults inside the shards of a vLLM engine; `collective_rpc` calls these functions there."""

import os
from typing import Any

FAULTY_RANK = 1
"""Rank of the shard with the fault."""


def lose_weights(worker: Any) -> None:
    """Let one shard ignore all weights that it receives, without an error."""
    if worker.rank == FAULTY_RANK:
        worker.model_runner.get_model().load_weights = lambda tensors: {name for name, _ in tensors}


def lose_adapters(worker: Any) -> None:
    """Let one shard keep its old adapters, without an error."""
    if worker.rank == FAULTY_RANK:
        worker.model_runner.add_lora = lambda request: True


def heal(worker: Any) -> None:
    """Undo both faults."""
    worker.model_runner.get_model().__dict__.pop("load_weights", None)
    worker.model_runner.__dict__.pop("add_lora", None)


def process_of(worker: Any) -> int:
    """Return the id of the shard's process."""
    return os.getpid()
