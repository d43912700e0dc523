"""Temporary folders that are gone with their process, and with a killed one at the next start.

A process holds a lock as long as it lives. The next one that needs a folder removes those of whom
nobody holds it any more.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO

PREFIX = "selfplay-vllm-"
LOCK = "lock"


def folder() -> TemporaryDirectory[str]:
    """A new one, to be cleaned up by who asked for it."""
    home, _ = _home(os.getpid())
    return TemporaryDirectory(dir=home.name)


@cache
def _home(process: int) -> tuple[TemporaryDirectory[str], IO[str]]:
    """The folder in which a process has all its own, and its lock."""
    sweep()
    made = TemporaryDirectory(prefix=PREFIX)
    new = Path(made.name, f"{LOCK}.new")
    lock = new.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(new.with_name(LOCK))  # so that nobody finds it unlocked
    return made, lock


def sweep() -> None:
    """Remove what killed processes of this user have left."""
    for lock in Path(gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        # Its process lives, or another sweeps.
        with suppress(OSError):
            if lock.parent.stat().st_uid != os.getuid():
                continue
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
