"""Child processes of Ray, and signals to them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def started(parent: int) -> Iterator[tuple[int, str]]:
    """Return the child processes of a process, by number and program."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            whose = (place / "stat").read_text().rpartition(")")[2].split()[1]
            program = (place / "cmdline").read_bytes().split(b"\0")[0].decode()
        except OSError:  # it has ended
            continue
        if int(whose) == parent:
            yield int(place.name), Path(program).name


def kill(name: str, parent: int, signal_: int = signal.SIGKILL) -> None:
    """Kill or stop a process of Ray."""
    (found,) = (number for number, program in started(parent) if program == name)
    os.kill(found, signal_)
