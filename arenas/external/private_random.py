"""A private copy of Python's and numpy's global random generators.

Many games draw from the generators that the whole process shares. Played side by side they would
take each other's numbers, and the library's own code would find its numbers changed.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class PrivateRandom:
    """What the global generators are inside `with private.swapped():`, seeded once. Picklable."""

    def __init__(self, seed: int) -> None:
        """`seed` is any integer that is not negative."""
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Draw from the private state, and leave the global one as it was."""
        outside: Any = random.getstate(), np.random.get_state()
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])
