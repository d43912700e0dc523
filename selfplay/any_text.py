"""The space of observations and actions of every arena."""

from typing import Any

from gymnasium import spaces

from selfplay.types import LONGEST_TEXT


class AnyText(spaces.Text):
    """Space of text with any characters; Gymnasium's `Text` has a fixed set of characters."""

    def __init__(self, max_length: int = LONGEST_TEXT) -> None:
        super().__init__(max_length=max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Return True if `x` is a string of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random string, for random agents."""
        length = int(self.np_random.integers(0, 32))
        return "".join(chr(int(code)) for code in self.np_random.integers(32, 127, size=length))
