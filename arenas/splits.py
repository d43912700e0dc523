"""The splits of an arena's tasks."""

from typing import Literal, TypeAlias

Split: TypeAlias = Literal["train", "held_out"]
"""Tasks of training, or tasks that training never shows."""
