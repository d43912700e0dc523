"""Moves: legal actions of an action space as text, and the parsing of a player's text."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from selfplay.errors import ConfigError

Named: TypeAlias = Callable[[int], str]
"""Function from an action's number to its name."""

WRITTEN = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box, spaces.Text)
"""Action spaces whose moves can be written as text."""
LONGEST_NUMBER = 32
"""Maximum characters of each number in a move."""


class Moves:
    """Legal moves of a player, from its action space, the env's mask and the config's names."""

    def __init__(
        self, space: spaces.Space[Any], *, mask: Any = None, named: Named | None = None
    ) -> None:
        """Args:
        space: The action space.
        mask: 1 for each legal action of a discrete space; None: all actions are legal.
        named: Names of the actions of a discrete space; None: their numbers.

        Raises ValueError for a mask of another size and for duplicate names.
        """
        self.space = space
        self.actions: dict[str, int] = {}
        if isinstance(space, spaces.Discrete):
            numbers = _legal(space, mask)
            self.actions = {(named(n) if named else str(n)).strip(): n for n in numbers}
            if len(self.actions) < len(numbers):
                raise ValueError(f"two of {len(numbers)} legal actions have the same name")

    @property
    def legal(self) -> list[str]:
        """Text of each legal move; empty for a space that is not discrete, see `form`."""
        return list(self.actions)

    @property
    def form(self) -> str:
        """Description of a move's form, if the moves cannot be listed."""
        if isinstance(self.space, spaces.Discrete):
            return ""
        if isinstance(self.space, spaces.Text):
            return f"any text of at most {self.space.max_length} characters"
        count = int(np.prod(self.space.shape or ()))
        return f"{count} numbers, separated by spaces{_bounds(self.space)}"

    def read(self, text: str) -> Any | None:
        """Return the action that the text names, or None if it is not a legal move."""
        if isinstance(self.space, spaces.Discrete):
            return self.actions.get(text.strip())
        if isinstance(self.space, spaces.Text):
            return text if self.space.contains(text) else None
        return self._numbers(text)

    def _numbers(self, text: str) -> Any | None:
        shape, dtype = self.space.shape or (), self.space.dtype
        count = int(np.prod(shape))
        if len(text) > LONGEST_NUMBER * (count + 1):
            return None
        words = text.strip().strip("[]()").replace(",", " ").split()
        convert: Any = float if dtype is not None and dtype.kind == "f" else int
        try:
            action = np.array([convert(word) for word in words], dtype=dtype)
        except (ValueError, OverflowError):
            return None
        if action.size != count or not np.isfinite(action).all():
            return None
        action = action.reshape(shape)
        return action if self.space.contains(action) else None

    def draw(self, rng: Random) -> Any:
        """Return a uniformly random legal move; raises IndexError if there is none."""
        if isinstance(self.space, spaces.Discrete):
            return rng.choice(list(self.actions.values()))
        self.space.seed(rng.getrandbits(31))
        return self.space.sample()


def check_moves_written(space: spaces.Space[Any], where: str) -> None:
    """Raise ConfigError for an action space whose moves cannot be written."""
    if not isinstance(space, WRITTEN):
        known = ", ".join(kind.__name__ for kind in WRITTEN)
        raise ConfigError(
            f"{where}: moves of a {type(space).__name__} space cannot be written as text; wrap the "
            f"env so that its actions are one of {known}"
        )


def _legal(space: "spaces.Discrete", mask: Any) -> Sequence[int]:
    first, count = int(space.start), int(space.n)
    if mask is None:
        return range(first, first + count)
    allowed = np.asarray(mask)
    if allowed.shape != (count,):
        raise ValueError(f"the mask has shape {allowed.shape}, but there are {count} actions")
    return [first + int(place) for place in np.flatnonzero(allowed)]


def _bounds(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.MultiBinary):
        return ", each 0 or 1"
    if isinstance(space, spaces.MultiDiscrete):
        first = np.broadcast_to(space.start, space.nvec.shape)
        return ": " + "; ".join(
            f"{low} to {low + size - 1}"
            for low, size in zip(first.flat, space.nvec.flat, strict=True)
        )
    if isinstance(space, spaces.Box):
        low, high = float(space.low.min()), float(space.high.max())
        return f", each from {low:g} to {high:g}"
    return ""
