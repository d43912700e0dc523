"""Safe access to the files of an untrusted folder: no link leads out, no pipe is opened.

A run folder can come from another person. It may hold symbolic links to files of the reader, and
pipes or devices with the names of ordinary files. All code that reads or writes inside such a
folder uses these functions. They check the folder's present state; they do not protect against a
process that changes the folder at the same time.
"""

import os
import secrets
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
    _demand_regular(path, os.stat(path).st_mode)
    # O_NONBLOCK: if a pipe took the file's place since then, opening it does not wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _demand_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


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
    _demand_regular(path, mode)


def write_text_confined(root: Path, path: Path, text: str) -> Path:
    """Write a text file inside `root` completely or leave it unchanged; return `path`.

    The text is written as UTF-8 with its line breaks unchanged; a lone surrogate becomes "?". The
    folder of `path` has to exist. Raises RunError like `check_inside`, and OSError from the disk.
    """
    check_inside(root, path)
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


def _demand_regular(path: Path, mode: int) -> None:
    """Raise RunError if `mode` is not that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _KINDS if test(mode)), "no ordinary file")
        raise RunError(f"{path}: is {kind}, not a regular file")
