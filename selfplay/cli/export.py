"""The command `export`: recorded episodes of a run as data for other trainers."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from selfplay.cli.arguments import note, nothing_more, takes_run
from selfplay.errors import ConfigError, RunError
from selfplay.run.step_range import step_range

if TYPE_CHECKING:
    from selfplay.run.chat_export import ChatExport

FORMATS = ("sft",)
"""Formats of an export."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Give the command its flags."""
    takes_run(command)
    command.add_argument(
        "--format",
        default="sft",
        metavar="FORMAT",
        help="sft: one JSON line of chat messages per turn (default)",
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="new file (default: print)")
    command.add_argument("--role", metavar="ROLE", help="only turns of this role")
    command.add_argument(
        "--min-reward",
        type=float,
        metavar="X",
        help="only episodes in which the agent's return is at least X",
    )
    command.add_argument(
        "--best",
        type=float,
        metavar="FRACTION",
        help="only this fraction of the trajectories (one agent in one episode) of each role, "
        "those with the largest returns first",
    )
    command.add_argument(
        "--steps", default=":", metavar="A:B", help="only the steps from A to B, both included"
    )


def run(options: argparse.Namespace, rest: list[str]) -> None:
    """Write the chosen turns of a run, one JSON line each."""
    nothing_more(rest, options)
    from selfplay.run.chat_export import ChatExport, Selection

    if options.format not in FORMATS:
        raise ConfigError(f"--format {options.format}: unknown; choose from: {', '.join(FORMATS)}")
    first, last = step_range(options.steps)
    selection = Selection(
        role=options.role,
        first=first,
        last=last,
        min_reward=options.min_reward,
        best=options.best,
    )
    export = ChatExport(run=options.run, selection=selection)
    out: Path | None = options.out
    if out is None:
        for line in export.lines():
            print(json.dumps(line))
    else:
        written = _write(out, export)
        print(f"{out}: {written} turns")
    for problem, count in sorted(export.left_out.items()):
        note(f"{count} turns {problem} are left out")
    sys.stdout.flush()


def _write(out: Path, export: "ChatExport") -> int:
    """Write a new file completely or not at all. Returns the number of lines."""
    if out.exists():
        raise ConfigError(f"--out {out}: exists and is not overwritten; choose another name")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: no folder {out.parent}; make it first")
    partial, written = out.with_name(f".{out.name}.{os.getpid()}.partial"), 0
    try:
        with partial.open("x", encoding="utf-8") as file:
            for line in export.lines():
                file.write(json.dumps(line) + "\n")
                written += 1
        partial.rename(out)
    except OSError as error:
        if error.filename not in (None, str(partial)):
            raise  # a file of the run, which the error names
        raise RunError(f"--out {out}: cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)
    return written
