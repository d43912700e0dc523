"""The arena: the game that agents play. `Arena` is the base class of all arenas."""

from selfplay.arena.arena import Arena

__all__ = ["Arena"]
