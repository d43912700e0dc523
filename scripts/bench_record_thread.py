"""Times the record of a step before learning, as in the library, and in a thread during learning.

Three kinds of learning, each about twice as long as the record: updates of a network of 16 numbers
and of one of 512 numbers, and a wait, as for learners in other processes. Python's interpreter lock
is free during a wait, during most of a large product, and hardly during small ones. Wall clocks are
compared, so another core must be free: with a load above the number of cores, a second thread also
takes more of the processor from other processes.

Usage: python scripts/bench_record_thread.py [--rounds 9] [--tokens MILLIONS] [--json FILE]
"""

import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from bench_records import siblings, tokens_of
from bench_timing import Line, arguments, compared, interleaved, load, show

from selfplay.run.directory import Run
from selfplay.types import Group, Sample

WIDTHS = (16, 512)
ROWS, LAYERS = 256, 4
LEARNING = 2.0
"""Duration of learning, as a multiple of that of the record."""


def updates(width: int) -> Callable[[], object]:
    """Return a function that does one update of a network."""
    layers = [
        layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())
    ]
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    rows = torch.randn(ROWS, width)

    def update() -> None:
        optimizer.zero_grad()
        network(rows).square().mean().backward()
        optimizer.step()

    return update


def repeated(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def in_turn(record: Callable[[], object], learn: Callable[[], object]) -> None:
    record()
    learn()


def in_thread(record: Callable[[], object], learn: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        recorded = pool.submit(record)
        learn()
        recorded.result()


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """Return the least wall-clock time of some rounds."""
    return min(interleaved({"": work}, rounds)[""])


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=float, default=0.0, help="millions of tokens of a step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = siblings(max(1, math.ceil(options.tokens * 1e6 / tokens_of(siblings(1)))))
    groups = [Group(id=str(at), episodes=tuple(made[at : at + 8])) for at in range(0, len(made), 8)]
    samples = [Sample(turn=turn, advantage=0.125) for each in made for turn in each.turns]
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", {})
        record = partial(run.record, 1, {}, groups, samples)
        target = LEARNING * seconds(record)
        works: dict[str, Callable[[], object]] = {"a wait": partial(time.sleep, target)}
        for width in WIDTHS:
            update = updates(width)
            times = max(1, round(target / seconds(update)))
            works[f"{times} updates of width {width}"] = partial(repeated, update, times)
        for name, learn in works.items():
            sides = {"at once": partial(in_turn, record, learn)}
            sides["thread"] = partial(in_thread, record, learn)
            found = interleaved(sides, options.rounds)
            what = f"a record in a thread during {name}, compared with before"
            lines.append(compared(what, found["thread"], found["at once"]))
    print(f"{tokens_of(made):,} tokens; {load()}")
    show(lines, options.json)


if __name__ == "__main__":
    main()
