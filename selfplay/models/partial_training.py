"""The state of an unfinished warm start, so that an interrupted one continues where it was."""

import os
import pickle
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

INTERVAL = 20.0
"""Shortest time between two writes, in seconds."""
LARGEST_FRACTION = 0.05
"""Largest fraction of the time that writes may take."""


class PartialTraining:
    """A file with the state after the latest written step: weights, optimizers, random state.

    The warm start that continues from it ends with the same weights as one that was never
    interrupted. The file lies in the user's cache, next to the folder of the finished model.
    """

    def __init__(
        self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        path: The file; None: no state is kept.
        clock: A monotonic clock, in seconds.
        """
        self.path, self._clock = path, clock
        # Two processes may make the same model at once.
        self._new = path and path.with_name(f"{path.name}.{os.getpid()}.new")
        self._next = clock() + INTERVAL

    def load(self) -> dict[str, Any] | None:
        """Return the state, on the CPU; None if there is none, or none that can be read."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
            return None
        return state if isinstance(state, dict) else None

    def keep(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Write the state that `state` returns, if the latest write is long enough ago.

        Call it between two steps. A disk that refuses the file does not stop the warm start.
        """
        if self.path is None or self._new is None or self._clock() < self._next:
            return
        begun = self._clock()
        content = dict(state())
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, self._new)
            self._new.replace(self.path)
        except (OSError, RuntimeError):  # torch reports a full disk as RuntimeError
            with suppress(OSError):
                self._new.unlink(missing_ok=True)
        now = self._clock()
        self._next = now + max(INTERVAL, (now - begun) / LARGEST_FRACTION)

    def drop(self) -> None:
        """Remove the file."""
        for path in (self.path, self._new):
            if path is not None:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
