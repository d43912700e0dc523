"""Temporary folders that are filled and then renamed, and their removal after a kill.

The process that fills such a folder holds a lock in it. The lock ends with the process, so that a
later process knows which folders will never be finished, on this machine and on others that share
the disk.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

LOCK = ".lock"
"""Name of the locked file in a folder that is being filled."""
GRACE = 60.0
"""Seconds after its last change in which a folder is left alone: its process may not have locked
it yet."""
OLD = 86_400.0
"""Seconds for which a folder without a lock file is left alone."""
LARGE = 2**24
"""Bytes of a file from which its hash is kept in memory."""
SETTLED = 2.0
"""Seconds after its last change in which no hash of a file is kept."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Mark a folder, during the context, as one that this process is filling."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Yield a new folder to fill, which is renamed to `folder` at the end of the context.

    A kill leaves the name free, and an error leaves nothing. Leftovers of other killed processes in
    the parent folder are removed.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process with the same id
    remove_abandoned(folder.parent, ".*.[0-9]*.partial")
    try:
        partial.mkdir(parents=True)
        with held(partial):
            yield partial
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_abandoned(parent: Path, pattern: str) -> list[Path]:
    """Remove folders of a pattern that a killed process left; return the removed ones.

    A link is not followed. A folder that cannot be removed stays; this is not an error.
    """
    gone = []
    for folder in sorted(parent.glob(pattern)):
        with suppress(OSError):
            if folder.is_symlink() or not folder.is_dir() or not _abandoned(folder):
                continue
            shutil.rmtree(folder)
            gone.append(folder)
    return gone


def sha256(path: Path) -> str:
    """Return the SHA-256 hash of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_once(path: Path) -> str:
    """Return the SHA-256 hash of a file, which this process reads once if the file is large.

    A resume asks for the same hashes several times, and a checkpoint of a large model takes minutes
    to read. A file that has changed since, by size, inode or times, is read again, and so is one
    that was changed in the last seconds, because two changes can have the same time.
    """
    now = path.stat()
    if now.st_size < LARGE or time.time() - max(now.st_mtime, now.st_ctime) < SETTLED:
        return sha256(path)
    known = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    return _hash_of(path.resolve(), known)


@lru_cache(maxsize=1024)
def _hash_of(path: Path, known: tuple[int, ...]) -> str:
    return sha256(path)


def _abandoned(folder: Path) -> bool:
    """Return True if a folder is left over: it is old enough, and no process holds its lock.

    Raises BlockingIOError if a process holds the lock.
    """
    age = time.time() - folder.stat().st_mtime
    lock = folder / LOCK
    if lock.is_symlink() or not lock.is_file():
        return age > OLD
    if age <= GRACE:
        return False
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True
