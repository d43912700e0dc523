"""The files of a run's index, and which errors show that one is damaged.

An empty file with the next number in its name replaces a damaged one. It cannot have the same
name, because a viewer that has the damaged file open removes the log of that name at its end.
"""

import os
import re
import sqlite3
from contextlib import suppress
from pathlib import Path

from selfplay.errors import RunError

_KINDS = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNREADABLE = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)
_KIND = 0xFF
"""Bits of an error code of SQLite that give its kind; the others give details."""
_LOGS = ("-wal", "-shm")
"""Endings of the files that SQLite keeps next to an open index."""


class DamagedIndex(RunError):
    """Raised if the tables of an index contradict each other."""


def is_damaged(error: Exception) -> bool:
    """Return True if an error shows that the index's file is damaged or cannot be read."""
    if isinstance(error, DamagedIndex):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & _KIND in _KINDS or code in _UNREADABLE)


class IndexFiles:
    """The files of the index of one run. Only the newest one is in use."""

    def __init__(self, folder: Path, name: str) -> None:
        """Args:
        folder: Folder of the index files; it is created.
        name: Name of the files without number and ending.
        """
        self._folder, self._name = folder, name
        _private_folder(folder)

    def newest(self) -> Path:
        """Return the newest file, which only the user can read; it is created if there is none."""
        path = self._path(self._number())
        _private_file(path)
        return path

    def replace(self, damaged: Path) -> None:
        """Make an empty file the newest one and remove the damaged one.

        If another viewer did so before, nothing is done.
        """
        number = self._number()
        if damaged != self._path(number):
            return
        _private_file(self._path(number + 1))
        for ending in ("", *_LOGS):
            _with_ending(damaged, ending).unlink(missing_ok=True)

    def _number(self) -> int:
        """Return the number of the newest file; 0 if there is none."""
        pattern = re.compile(rf"{self._name}\.([0-9]{{1,9}})\.sqlite")
        found = [pattern.fullmatch(path.name) for path in self._folder.iterdir()]
        return max((int(each[1]) for each in found if each), default=0)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}{f'.{number}' if number else ''}.sqlite"


def _with_ending(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _private_folder(path: Path) -> None:
    """Create a folder that only the user can read, because an index contains the agents' texts."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(PermissionError):  # another user made the folder
        path.chmod(0o700)


def _private_file(path: Path) -> None:
    """Create a file that only the user can read. SQLite gives its extra files the same mode."""
    try:
        _touch(path)
    except PermissionError:
        path.chmod(0o600)  # the user's own file, with another mode
        _touch(path)
    for each in (path, *(_with_ending(path, ending) for ending in _LOGS)):
        with suppress(FileNotFoundError):
            each.chmod(0o600)  # an older version may have made it with another mode


def _touch(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
