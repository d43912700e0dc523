"""Measures the start of a rollout worker: its model from files, or from weights that were sent.

The model has the sizes of SmolLM2-135M and random weights. Each start is a fork of this process. It
is measured until the first token is sampled, and then until new weights have arrived. The engine's
trial of the model, which is the same for both, is left out. Private memory is read from /proc every
5 ms. It has no pages of files, and none of the shared memory in which the weights were sent,
because all workers of a machine share that memory.

Usage: python scripts/bench_worker_start.py [--rounds 3] [--saved bfloat16] [--dtype float32]
           [--json FILE]
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from bench_ranks import FORK, MB, watched
from bench_timing import Line, arguments, compared, show

from selfplay.config import compose
from selfplay.engines.transformers import TransformersEngine
from selfplay.models.policy import load_model
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.runtime.engine_worker import WorkerConfig
from selfplay.runtime.rollout_worker import RolloutWorker
from selfplay.runtime.weight_sync import Packed, UpdateWeights, checksum, pack
from selfplay.types import Request

SIZES = {"layers": 30, "hidden": 576, "heads": 9, "intermediate": 1536}
WORDS = 49_152
TYPES = ("float32", "bfloat16")


class Worker(RolloutWorker):
    """A worker whose weights are in memory that it shares with this process."""

    def _get(self, reference: Any) -> Any:
        return reference


def start(brief: WorkerConfig, update: UpdateWeights, answers: Any) -> None:
    """Start a worker, sample a token, and take an update; answer with seconds and memory."""
    torch.set_num_threads(1)
    began, spent = time.perf_counter(), time.process_time()
    trial = mock.patch.object(TransformersEngine, "_tried", lambda *_: "")
    with trial, watched() as found:
        worker = Worker()
        worker.begin(brief)
        if worker._fault is not None:
            raise worker._fault
        engine: Any = worker._engine
        engine.catch_up()
        engine.add(Request(id=0, policy="base", prompt_ids=(5, 6, 7), seed=0, max_tokens=1))
        while not engine.step():
            pass
        seconds = time.perf_counter() - began, time.process_time() - spent
        start = max(found)
        worker.send(brief.number + 1, update)
        engine.catch_up()
        time.sleep(0.05)
    answers.put((*seconds, start / MB, found[-1] / MB))
    os._exit(0)


def measured(brief: WorkerConfig, update: UpdateWeights) -> tuple[float, ...]:
    """Return wall and processor seconds to the first token, and the largest private memory until
    then and the memory after an update, in MB."""
    answers = FORK.SimpleQueue()
    worker = FORK.Process(target=start, args=(brief, update, answers))
    worker.start()
    found: tuple[float, ...] = answers.get()
    worker.join()
    return found


def shared(packed: Packed, folder: Path) -> Packed:
    """Return packed weights as arrays over files in shared memory, as Ray's store has them."""
    made = {}
    for number, (name, (array, kind, shape)) in enumerate(packed.items()):
        path = folder / str(number)
        array.tofile(path)
        made[name] = (np.memmap(path, dtype=np.uint8, mode="r"), kind, shape)
    return made


def update_of(model: Any, folder: Path, version: int) -> UpdateWeights:
    """Return an update with a model's weights."""
    weights = dict(model.named_parameters())
    sums = {name: checksum(tensor) for name, tensor in weights.items()}
    folder.mkdir()
    packed = shared(pack(weights, weights.keys()), folder)
    return UpdateWeights(policy="base", weights=packed, version=version, checksums=sums)


def config(folder: Path) -> Mapping[str, Any]:
    """Return the config of a run of Kuhn poker with a model."""
    given = ["policy=huggingface", f"policy.model={folder}", "policy.dtype=float32"]
    return compose.load(["+experiment=tiny/kuhn", *given])


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saved", choices=TYPES, default="float32", help="type of the files")
    parser.add_argument("--dtype", choices=TYPES, default="float32", help="type of the worker")
    options = parser.parse_args()
    with TemporaryDirectory() as folder, TemporaryDirectory(dir="/dev/shm") as store:
        place = Path(folder)
        tokenizer = build_tokenizer([])
        model: Any = build_model(WORDS, seed=0, **SIZES)
        count = sum(parameter.numel() for parameter in model.parameters())
        model.to(getattr(torch, options.saved)).save_pretrained(place)
        tokenizer.save_pretrained(place)
        del model
        model = load_model(folder, where="policy", dtype=options.dtype)
        first = update_of(model, Path(store, "first"), 0)
        second = replace(first, version=1)
        del model
        brief = WorkerConfig(
            config=config(place),
            threads=1,
            saved=None,
            max_staleness=0,
            timeout=60,
            host="",
            dtype=options.dtype,
        )
        ways = {"sent": replace(brief, number=1, changes=[first], receives=True), "files": brief}
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
        for number in range(
            options.rounds
        ):  # the files were just written, so the disk's cache has them
            for name in list(ways) if number % 2 else list(ways)[::-1]:
                found[name].append(measured(ways[name], second))
    what = f"{count / 1e6:.0f} M parameters in {options.dtype}, files in {options.saved}"
    parts = ("seconds", "processor seconds", "largest private memory", "memory after an update")
    lines: list[Line] = []
    for place_of, part in enumerate(parts):
        pairs = [[each[place_of] for each in found[name]] for name in ("sent", "files")]
        line = compared(f"{what}: {part}", *pairs)
        lines.append(line if "seconds" in part else replace(line, unit="MB"))
    show(lines, options.json)


if __name__ == "__main__":
    main()
