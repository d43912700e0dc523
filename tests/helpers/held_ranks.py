"""A stand-in for ranks that write their part of a checkpoint when a test allows it."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LONGEST = 60.0
"""Seconds after which a test counts as hanging."""


class HeldRanks:
    """A learner whose ranks write a file in the background, and only after `let` is set."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.error: Exception | None = None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise AssertionError

    def fetch_weights(self) -> None:
        pass

    def save_shards(self, folder: Path) -> Mapping[str, str]:
        raise AssertionError("the ranks write while the training waits")

    def begin_shards(self, folder: Path) -> Callable[[], Mapping[str, str]]:
        assert folder.is_dir()

        def written() -> Mapping[str, str]:
            assert self.let.wait(LONGEST)
            if self.error is not None:
                raise self.error
            (folder / "part").write_bytes(b"part")
            return {"part": hashlib.sha256(b"part").hexdigest()}

        return written

    def load_shards(self, folder: Path) -> None:
        raise AssertionError
