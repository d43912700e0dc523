"""Text for observations of numbers, such as boards.

Numbers that are not whole have six significant digits.

Planes of zeros and ones, the usual form of a board, become one grid if no square is in two planes:
a digit is the number of the plane, from 1, and a dot means none. If planes overlap, the squares of
each plane that is not empty are listed.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MASK = "action_mask"
MOST_PLANES = 9
"""Maximum number of planes in one grid, one digit per plane."""
SHORT = 16
"""Maximum length of a row of zeros and ones that is written in full; longer rows list the ones."""


def written(observation: Any) -> str:
    """Return an observation as text, without its action mask (the list of moves contains it)."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        rest = {key: value for key, value in observation.items() if key != MASK}
        if set(rest) == {"observation"}:
            return written(rest["observation"])
        return "\n".join(_titled(str(key), written(value)) for key, value in rest.items())
    if isinstance(observation, tuple | list) and not _is_numbers(observation):
        return "\n".join(written(each) for each in observation)
    if observation is None:
        return ""
    array = np.asarray(observation)
    return _array(array) if array.dtype.kind in "biuf" else str(observation)


def _titled(title: str, text: str) -> str:
    return f"{title}:\n{text}" if "\n" in text else f"{title}: {text}"


def _is_numbers(values: Any) -> bool:
    return bool(values) and all(isinstance(each, int | float | np.number) for each in values)


def _array(array: NDArray[Any]) -> str:
    if array.ndim == 0:
        return _number(array)
    if array.ndim == 1:
        return _row(array)
    if array.ndim == 2:
        return "\n".join(" ".join(map(_number, row)) for row in array)
    if array.ndim == 3:
        return _planes(array)
    return "\n".join(
        _titled(f"layer {place + 1}", _array(part)) for place, part in enumerate(array)
    )


def _number(value: Any) -> str:
    number = float(value)
    return f"{number:.15g}" if number.is_integer() else f"{number:g}"


def _is_binary(array: NDArray[Any]) -> bool:
    return bool(np.isin(array, (0, 1)).all())


def _row(row: NDArray[Any]) -> str:
    if len(row) <= SHORT or not _is_binary(row):
        return " ".join(map(_number, row))
    return "ones at " + (" ".join(map(str, np.flatnonzero(row))) or "no place")


def _planes(array: NDArray[Any]) -> str:
    """Return the text of an array [rows, columns, planes], the order of PettingZoo's boards."""
    count = array.shape[-1]
    if _is_binary(array) and count <= MOST_PLANES and array.sum(-1).max(initial=0) <= 1:
        numbers = array.astype(int) @ np.arange(1, count + 1)
        return "\n".join(" ".join(str(each) if each else "." for each in row) for row in numbers)
    lines = [f"plane {place + 1}: {_plane(array[..., place])}" for place in range(count)]
    return "\n".join(line for line in lines if not line.endswith(": nowhere"))


def _plane(plane: NDArray[Any]) -> str:
    """Return the squares of one plane, with rows and columns numbered from 1."""
    first = plane.flat[0] if plane.size else 0
    if (plane == first).all():
        return {0: "nowhere", 1: "everywhere"}.get(first, f"{_number(first)} everywhere")
    if not _is_binary(plane):
        return " / ".join(" ".join(map(_number, row)) for row in plane)
    return " ".join(f"{row + 1},{column + 1}" for row, column in np.argwhere(plane))
