"""Times how long learner ranks wait for a checkpoint of their parts of the optimizer.

Ranks are forks of this process with a random model in float32 and the averages of Adam. They write
their parts at once, or copy them and write the copies in a thread (run.async_checkpoints), in
turns. The seconds are those of the first rank; the last line has the copy and the thread together.

Usage: python scripts/bench_rank_checkpoint.py [--ranks 2] [--layers 8] [--hidden 512] [--rounds 5]
           [--folder DIR] [--json FILE]
"""

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from bench_checkpoint import sample
from bench_timing import arguments, compared, load, show

from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import BatchCounts, PolicyLoss
from selfplay.learner.outline import shared
from selfplay.models.tiny import build_model
from selfplay.runtime.learner_worker import LearnerWorker

FORK = multiprocessing.get_context("fork")
VOCABULARY = 12_000
TOKENS = 16


class Rank(LearnerWorker):
    """A rank of one policy, in a process that is no actor of Ray."""

    def fill(self, layers: int, hidden: int) -> None:
        """Make the model and the averages of Adam."""
        self._writers = dist.new_group(backend="gloo")

        def made() -> dict[str, Learner]:
            sizes = {"hidden": hidden, "layers": layers, "intermediate": 3 * hidden}
            model = build_model(VOCABULARY, seed=0, **sizes)
            return {"base": Learner(model, objective=PolicyLoss(), settings=LearnerSettings())}

        self.learners = shared(made)
        self.spread("cpu")
        self.optimize("base", [sample(TOKENS)], BatchCounts(tokens=TOKENS, sequences=1), step=1)


def timed(work: Callable[[], object]) -> float:
    dist.barrier()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(rank: int, store: str, options: Any, answers: Any) -> None:
    """Save as one rank; the first one answers with its seconds and the bytes of all files."""
    torch.set_num_threads(1)
    world = {"rank": rank, "world_size": options.ranks}
    dist.init_process_group("gloo", init_method=f"file://{store}", **world)
    served, folder = Rank(), Path(store).parent / "parts"
    served.fill(options.layers, options.hidden)
    seconds: dict[str, list[float]] = {"at once": [], "copy": [], "until written": []}
    for number in range(options.rounds + 1):
        for way in ("at once", "thread") if number % 2 else ("thread", "at once"):
            if rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            dist.barrier()
            if way == "at once":
                found = {"at once": timed(lambda: served.save("base", folder))}
            else:
                copy = timed(lambda: served.begin_save("base", folder))
                found = {
                    "copy": copy,
                    "until written": copy + timed(lambda: served.end_save("base")),
                }
            if number:  # the first round warms up
                for name, one in found.items():
                    seconds[name].append(one)
    if rank == 0:
        size = sum(path.stat().st_size for path in folder.iterdir())
        answers.put((seconds, size))
    dist.barrier()
    os._exit(0)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.folder) as folder:
        answers, store = FORK.SimpleQueue(), str(Path(folder, "store"))
        ranks = [
            FORK.Process(target=measure, args=(rank, store, options, answers))
            for rank in range(options.ranks)
        ]
        for each in ranks:
            each.start()
        seconds, size = answers.get()
        for each in ranks:
            each.join()
    print(load())
    what = (
        f"{options.ranks} ranks wait for their parts of a checkpoint, {size / 1e6:.0f} MB: a copy"
    )
    show(
        [
            compared(what, seconds["copy"], seconds["at once"]),
            compared(
                "the same, until the files are written",
                seconds["until written"],
                seconds["at once"],
            ),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
