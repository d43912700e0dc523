"""Safe access to the files of an untrusted folder: no link leads out, no pipe is opened.

A run folder can come from another person. It may hold symbolic links to files of the reader, and
pipes or devices with the names of ordinary files. All code that reads or writes inside such a
folder uses these functions. They check the folder's present state; they do not protect against a
process that changes the folder at the same time.
"""

import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import BinaryIO

from selfplay.config.regular_files import demand_regular, open_regular_file
from selfplay.errors import RunError

ABANDONED = 60.0
"""Age in seconds of a draft that no process writes any more."""


def is_confined(root: Path, path: Path) -> bool:
    """Return True if `path`, with all symbolic links followed, is `root` or lies inside it.

    `root` itself may be a link. `path` need not exist.
    """
    try:
        real, place = os.path.realpath(root), os.path.realpath(path)
    except (OSError, ValueError):  # such as a NUL character in a name
        return False
    return place == real or place.startswith(real.rstrip(os.sep) + os.sep)


def open_regular(path: Path, *, root: Path | None = None) -> BinaryIO:
    """Open a regular file for reading bytes, and nothing else.

    A pipe or a device is never opened, because opening can wait for ever or have effects. With a
    `root`, the file has to lie inside this folder after all links are followed.

    Raises RunError, in one line, if `path` is not a regular file or leads out of `root`. Raises
    FileNotFoundError or another OSError if there is no such file or it may not be read.
    """
    if root is not None and not is_confined(root, path):
        raise RunError(f"{path}: leads out of {root} (a symbolic link); it is not read")
    return open_regular_file(path)


def read_limited(path: Path, *, root: Path, most: int) -> bytes:
    """Return the content of a regular file inside `root`.

    Raises RunError, in one line, like `open_regular`, for a file of more than `most` bytes, and for
    one that cannot be read. Raises FileNotFoundError if there is no such file.
    """
    try:
        with open_regular(path, root=root) as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > most:
        raise RunError(f"{path}: longer than {most:,} bytes; no run writes as much")
    return data


def check_inside(root: Path, path: Path) -> None:
    """Raise RunError, in one line, if writing to `path` could change anything outside `root`.

    Refused: a symbolic link, a path whose folder leads out of `root`, and a path that exists and is
    not a regular file. A path that does not exist is accepted.
    """
    if path.is_symlink():
        raise RunError(f"{path}: is a symbolic link; remove it, then write again")
    if not is_confined(root, path) or os.path.realpath(root) == os.path.realpath(path):
        raise RunError(f"{path}: leads out of {root}; nothing is written there")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    demand_regular(path, mode)


def write_text_confined(root: Path, path: Path, text: str) -> Path:
    """Write a text file inside `root` completely or leave it unchanged; return `path`.

    The text is written as UTF-8 with its line breaks unchanged; a lone surrogate becomes "?". The
    folder of `path` has to exist. Drafts of this file that a kill left are removed. Raises RunError
    like `check_inside`, and OSError from the disk.
    """
    check_inside(root, path)
    _remove_drafts(path)
    # The name is new and cannot be guessed, so no link can have it already.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _remove_drafts(path: Path) -> None:
    """Remove the drafts of a file that killed processes left in its folder."""
    draft = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.partial")
    with os.scandir(path.parent) as entries:
        left = [e.path for e in entries if draft.fullmatch(e.name) and _abandoned(e)]
    for each in left:
        Path(each).unlink(missing_ok=True)


def _abandoned(entry: "os.DirEntry[str]") -> bool:
    """Return True for a regular file whose last change is more than a minute ago."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > ABANDONED
