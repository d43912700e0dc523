"""A file that is hashed while it is written."""

import hashlib
import io
from pathlib import Path
from typing import Any

PIECE = 2**23
"""Bytes that are hashed and then written at once."""


class HashingFile(io.BufferedWriter):
    """A new file whose SHA-256 is computed while it is written from its beginning to its end.

    Hashing and writing large buffers do not hold Python's interpreter lock.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self._hash = hashlib.sha256()
        self.error: OSError | None = None
        """First error of the disk; torch.save raises another one in its place."""

    def write(self, data: Any) -> int:
        """Append bytes."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), PIECE):
                piece = view[start : start + PIECE]
                self._hash.update(piece)
                super().write(piece)
        except OSError as error:
            self.error = self.error or error
            raise
        return len(view)

    def seek(self, *arguments: Any) -> int:
        """Raise UnsupportedOperation, because a part that is written again would count twice."""
        raise io.UnsupportedOperation("a file that is hashed while it is written has no seek")

    def sha256(self) -> str:
        """Return the hash of everything that was written, in hexadecimal."""
        return self._hash.hexdigest()
