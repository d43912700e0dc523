"""The user's cache of models: folders that are made once, complete or not at all."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout

from selfplay.errors import one_line
from selfplay.run import files
from selfplay.run.directory import reporting_disk, sync
from selfplay.run.untrusted import open_regular

WHOLE = 2**22
"""Size in bytes up to which a file is hashed as a whole; 4 MiB."""
BLOCKS, BLOCK = 256, 2**14
"""Number and size in bytes of the blocks of a larger file that are hashed."""
LOCKS = "locks"
"""Folder of the cache with a lock for each model that is made."""
POLL = 0.5
"""Seconds between two attempts to get a lock."""


def made_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder of a model; `write` makes its files now if the folder does not exist.

    `write` gets an empty temporary folder, which is renamed when it is complete, so that a killed
    process leaves no incomplete folder of this name. Two processes may make the same folder at
    once. Raises RunError if the disk refuses.
    """
    if is_complete(folder):
        return folder
    with reporting_disk(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A lock marks a temporary folder in use: another process may be making the same model.
        files.remove_abandoned(folder.parent, ".*-*")
        with (
            TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place,
            files.held(Path(place)),
        ):
            partial = Path(place) / "model"
            partial.mkdir()
            write(partial)
            for path in (*partial.rglob("*"), partial):
                sync(path)
            try:
                partial.rename(folder)
            except OSError:
                if not is_complete(folder):
                    raise
    return folder


@contextmanager
def alone(
    folder: Path, *, what: str = "model", report: Callable[[str], object] = lambda line: None
) -> Iterator[None]:
    """Return a context in which only one process at a time makes the folder of a model.

    A process that has to wait reports it in one line. The operating system releases the lock of a
    process that ends or is killed; then the next process begins. The locks are files in `LOCKS`.
    Some file systems give no lock, such as NFS without its lock service. This is reported in one
    line, and the context begins without a lock. Two processes may then make the same folder, and
    `made_once` keeps the first that is complete.

    Args:
        folder: Folder of the model in the cache.
        what: The kind of the model, as the lines call it.
        report: Function that shows a line.
    Raises:
        RunError: If the disk refuses the folder of the locks, as a read-only one.
    """
    place = folder.parent.parent / LOCKS / f"{folder.parent.name}-{folder.name}.lock"
    with reporting_disk(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place, fallback_to_soft=False)
    with ExitStack() as held:
        try:
            try:
                held.enter_context(lock.acquire(blocking=False))
            except Timeout:
                report(f"{what}: waiting for another run that makes this {what}")
                held.enter_context(lock.acquire(poll_interval=POLL))
        except OSError as error:
            report(f"{what}: no lock ({one_line(error)}); another run may make this {what} too")
        yield


def is_complete(folder: Path) -> bool:
    """Return True if a cached folder holds a model."""
    return (folder / "config.json").is_file()


def identity(model: str) -> str:
    """Return a text that identifies a model: its name, or the contents of its folder.

    Of a large file, only the size and blocks at equal distances are hashed; training changes all
    weights, and so these blocks. A copy of the folder on another machine has the same identity.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    parts = [(path.name, _contents(path)) for path in sorted(folder.iterdir()) if path.is_file()]
    return json.dumps(parts)


def _contents(path: Path) -> str:
    """Return the size of a file and a hash of its contents, or of blocks of it."""
    found = blake2b(digest_size=16)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            found.update(file.read())
        else:
            for number in range(BLOCKS):
                file.seek(number * (size - BLOCK) // (BLOCKS - 1))
                found.update(file.read(BLOCK))
    return f"{size} {found.hexdigest()}"
