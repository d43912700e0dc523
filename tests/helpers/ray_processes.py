"""Child processes of Ray, and signals to them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def started(parent: int) -> Iterator[tuple[int, str]]:
    """Yield the (id, program name) of each child process of a process."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent_id = (place / "stat").read_text().rpartition(")")[2].split()[1]
            program = (place / "cmdline").read_bytes().split(b"\0")[0].decode()
        except OSError:  # it has ended
            continue
        if int(parent_id) == parent:
            yield int(place.name), Path(program).name


def kill(name: str, parent: int, signal_: int = signal.SIGKILL) -> None:
    """Send a signal, by default SIGKILL, to the child process with this program name."""
    (found,) = (number for number, program in started(parent) if program == name)
    os.kill(found, signal_)
