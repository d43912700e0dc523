"""Times a training step alone and with busy processes, with long and with short waits of threads.

OpenMP threads that wait for each other spin for a while before they sleep. On a busy machine, the
spinning takes the time that the threads they wait for would need. `limit_spinning` shortens it. One
process with OpenMP's own waits and one with ours make the same steps in turns, first alone, then
with busy processes. The step is that of bench_batch.py with fewer prompts. The lines give
wall-clock and CPU seconds of a step, and the least and the largest load average at the beginning of
a round, because other work on the machine distorts the result.

Usage: python scripts/bench_busy.py [--rounds 5] [--steps 1] [--busy 3] [--json FILE]
"""

import json
import os
import subprocess
import sys
import time
from argparse import SUPPRESS
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bench_timing import Line, arguments, compared, show

from selfplay.config.threads import SPIN_VARIABLES, limit_spinning

SIDES = ("ours", "before", "one thread")
PROMPTS = 8
"""Number of prompts of a step; each has the completions of bench_batch.py."""
COST = 1.05
"""Largest allowed wall-clock time of ours on an idle machine, relative to OpenMP's own waits."""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="training steps of a round")
    parser.add_argument("--busy", type=int, default=3, help="number of busy processes")
    parser.add_argument("--side", choices=SIDES, help=SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve(options.side)
        return
    with ExitStack() as stack:
        sides = {side: stack.enter_context(stepper(side)) for side in SIDES}
        lines: list[Line] = []
        for busy in (0, options.busy):
            lines += measured(sides, busy, options.rounds, options.steps)
    show(lines, options.json)


class Stepper:
    """A process that makes training steps on demand."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def round(self, steps: int) -> dict[str, float]:
        """Make some steps; return the wall-clock and the CPU seconds of one."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the process that makes the steps ended; its error is above")
        seconds: dict[str, float] = json.loads(answer)
        return seconds


@contextmanager
def stepper(side: str) -> Iterator[Stepper]:
    """Start the process of one side, and make its first step."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--side", side],
        env={name: value for name, value in os.environ.items() if name not in SPIN_VARIABLES},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        made = Stepper(process)
        made.round(1)
        yield made
    finally:
        process.kill()
        process.wait()


def measured(sides: Mapping[str, Stepper], busy: int, rounds: int, steps: int) -> list[Line]:
    """Return the lines of wall-clock and CPU time with some busy processes."""
    loads: list[float] = []
    seconds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with busy_processes(busy):
        for number in range(rounds):
            loads.append(os.getloadavg()[0])
            for side in list(sides)[:: 1 if number % 2 else -1]:
                seconds[side].append(sides[side].round(steps))
    load = f"load {min(loads):.1f} to {max(loads):.1f}"
    return [
        compared(
            f"a step with {busy} busy processes, {load}: {clock}, compared with {other}",
            *([each[clock] for each in seconds[side]] for side in (SIDES[0], other)),
            target=1 / COST if other == "before" and clock == "wall clock" and not busy else None,
        )
        for other in SIDES[1:]
        for clock in ("wall clock", "CPU")
    ]


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep some processes busy in the context. They end if this process is killed."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def serve(side: str) -> None:
    """Make as many steps as each line of the input asks for, and print the seconds of one."""
    if side != "before":
        limit_spinning()
    # These imports load torch, whose OpenMP library reads the environment.
    import torch
    from bench_batch import new_step

    if side == "one thread":
        torch.set_num_threads(1)
    step, _ = new_step(PROMPTS)
    for line in sys.stdin:
        wall, cpu, count = time.perf_counter(), time.process_time(), int(line)
        for _ in range(count):
            step()
        seconds = {
            "wall clock": (time.perf_counter() - wall) / count,
            "CPU": (time.process_time() - cpu) / count,
        }
        sys.stdout.write(f"{json.dumps(seconds)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
