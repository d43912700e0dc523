"""Opening of regular files only: a pipe can wait for ever, and a device can have no end."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from selfplay.errors import RunError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes, and nothing else; links are followed.

    Raises RunError, in one line, if `path` is not a regular file. Raises FileNotFoundError or
    another OSError if there is no such file or it may not be read.
    """
    demand_regular(path, os.stat(path).st_mode)
    # O_NONBLOCK: if a pipe took the file's place since then, opening it does not wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        demand_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def demand_regular(path: Path, mode: int) -> None:
    """Raise RunError if `mode` is not that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _KINDS if test(mode)), "no ordinary file")
        raise RunError(f"{path}: is {kind}, not a regular file")
