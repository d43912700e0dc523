"""Demonstrations of conditional cooperation with errors, for the warm start."""

from random import Random
from typing import Any

from arenas.games.random_play import RandomPlay
from selfplay.types import Observation


class ConditionalCooperation(RandomPlay):
    """Stream of moves in a public-goods game: give if enough others gave, except for errors.

    Situations have names as in `RandomPlay`, for the same reason.
    """

    def __init__(self, *, errs: float, enough: float = 0.5, **settings: Any) -> None:
        """Args:
        errs: Fraction of answers that are the other move; 0.5 means random play.
        enough: Fraction of the other players that gave in the last round from which on the
            player gives.
        **settings: Settings of `RandomPlay`; `arena` is a public-goods game.
        """
        if not 0 <= errs <= 1 or not 0 <= enough <= 1:
            raise ValueError("errs and enough lie in [0, 1]")
        self.errs, self.enough = errs, enough
        super().__init__(**settings)

    def move(self, seen: Observation, turn: int, rng: Random) -> str:
        """Return the move after the last round or, at random, the other one; any in round one."""
        history = seen.fields["history"]
        if not history:
            return super().move(seen, turn, rng)
        give, keep = self.legal(seen)
        gives = history[-1]["gave"] >= self.enough * (seen.fields["players"] - 1)
        return give if gives is not (rng.random() < self.errs) else keep
