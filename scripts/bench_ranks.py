"""Measures the main memory that learner ranks of a machine take while they load and shard a model.

Each rank is a fork of this process; the largest private memory (without pages of files) during
`begin` is read from /proc every 5 ms. Ours: the first rank loads the model and the others get their
parts. The other way: every rank loads it. A model of random weights is made and saved first, in
bfloat16 as published models are, and learns in float32. With `--saved float32` its weights stay
pages of the file, which all ranks share.

Usage: python scripts/bench_ranks.py [--ranks 4] [--layers 8] [--hidden 768] [--saved bfloat16]
           [--json FILE]
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from bench_timing import arguments, compared, show

from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime import learner_worker
from selfplay.runtime.learner_worker import LearnerConfig, LearnerWorker

FORK = multiprocessing.get_context("fork")
MB = 1e6
PAUSE = 0.005


def private() -> float:
    """Return the bytes of this process that are no pages of files."""
    words = Path("/proc/self/status").read_text(encoding="ascii").split("RssAnon:")[1]
    return 1024.0 * int(words.split()[0])


@contextmanager
def watched() -> Iterator[list[float]]:
    """Collect the growth of this process's private memory."""
    before, found, ended = private(), [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(PAUSE):
            found.append(private() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def rank_memory(
    rank: int, count: int, store: str, all_load: bool, config: Mapping[str, Any], answers: Any
) -> None:
    """Begin as one rank; answer with the largest memory, and a checksum of all weights."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    setup = LearnerConfig(
        config=config,
        objective=build(config["objective"], where="objective"),
        learners=RolloutSetup(config).learner_settings,
        saved=None,
        gpu=False,
        threads=1,
        host="",
    )
    worker = LearnerWorker()
    way = (lambda make: make()) if all_load else learner_worker.shared
    with mock.patch.object(learner_worker, "shared", way), watched() as found:
        worker.begin(setup)
    checksums: Any = list(worker.weights("base"))[1]
    answers.put((rank, max(found), sum(checksums.values())))
    dist.barrier()
    os._exit(0)


def peaks(count: int, config: Mapping[str, Any], *, all_load: bool) -> tuple[list[float], int]:
    """Return the largest memory of each rank in MB, and a checksum of all weights."""
    with TemporaryDirectory() as folder:
        answers, store = FORK.SimpleQueue(), str(Path(folder, "store"))
        ranks = [
            FORK.Process(target=rank_memory, args=(n, count, store, all_load, config, answers))
            for n in range(count)
        ]
        for each in ranks:
            each.start()
        found = sorted(answers.get() for _ in ranks)
        for each in ranks:
            each.join()
    return [memory / MB for _, memory, _ in found], found[0][2]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--saved", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        tokenizer = build_tokenizer([])
        model = build_model(
            len(tokenizer),
            seed=0,
            hidden=options.hidden,
            layers=options.layers,
            intermediate=3 * options.hidden,
        )
        whole = 4 * sum(parameter.numel() for parameter in model.parameters()) / MB
        model.to(getattr(torch, options.saved)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        overrides = ["policy=huggingface", f"policy.model={folder}", "policy.dtype=float32"]
        overrides.append("objective.kl=0")
        config = compose.load(["+experiment=tiny/kuhn", *overrides])
        ours, weights = peaks(options.ranks, config, all_load=False)
        other, same = peaks(options.ranks, config, all_load=True)
    assert weights == same, "the ranks have different weights"
    what = f"{options.ranks} ranks, a model of {whole:.0f} MB"
    pairs = {
        "the first rank": (ours[0], other[0]),
        "each of the others": (max(ours[1:]), max(other[1:])),
        "all": (sum(ours), sum(other)),
    }
    lines = [
        replace(compared(f"{what}: {name}", [mine], [theirs]), unit="MB")
        for name, (mine, theirs) in pairs.items()
    ]
    show(lines, options.json)


if __name__ == "__main__":
    main()
