"""The command `average`: the mean of the weights of a run's checkpoints, as a run of its own."""

import argparse
from pathlib import Path

from selfplay.cli.arguments import nothing_more, takes_run
from selfplay.run.step_range import step_range


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Give the command its flags."""
    takes_run(command)
    command.add_argument(
        "--steps",
        default=":",
        metavar="A:B",
        help="checkpoints of the steps from A to B, both included (default: all after step 0)",
    )
    command.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the new run (default RUN_mean)"
    )


def run(options: argparse.Namespace, rest: list[str]) -> None:
    """Write the mean of the weights, and print where it is."""
    nothing_more(rest, options)
    from selfplay.learner.weight_average import average  # loads torch

    source: Path = options.run
    named = source.resolve() if source.name in ("", "..") else source
    target = options.out or named.with_name(f"{source.resolve().name}_mean")
    first, last = step_range(options.steps)
    steps = average(source, target, first=first, last=last)
    print(f"{target}: mean of the weights of steps {', '.join(map(str, steps))}")
