"""Private copy of the global random generators of Python and numpy.

Many games draw from the generators that the whole process shares. Concurrent games would consume
each other's numbers and change the random numbers of the library's own code.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_LOCK = threading.RLock()
"""Held inside every `swapped`, because a process has one pair of global generators."""


class PrivateRandom:
    """Seeded state of the global generators inside `with private.swapped():`; can be pickled."""

    def __init__(self, seed: int) -> None:
        """`seed` is an integer of 0 or more."""
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the private state inside the block, and restore the global state after it.

        A block of another thread waits for the end of this one.
        """
        with _LOCK:
            outside: Any = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])
