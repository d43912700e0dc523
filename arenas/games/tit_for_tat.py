"""Demonstrations of tit for tat with errors, for the warm start."""

from random import Random
from typing import Any

from arenas.games.random_play import RandomPlay
from selfplay.types import Observation


class TitForTat(RandomPlay):
    """Stream of moves that repeat the other player's last move, except for random errors.

    Situations have names as in `RandomPlay`, for the same reason.
    """

    def __init__(self, *, errs: float, **settings: Any) -> None:
        """Args:
        errs: Fraction of answers that are another legal move than the other player's last one. With
            two moves, 0.5 means random play.
        **settings: Settings of `RandomPlay`; `arena` is a repeated matrix game without messages.
        """
        if not 0 <= errs <= 1:
            raise ValueError("errs lies in [0, 1]")
        self.errs = errs
        super().__init__(**settings)

    def move(self, seen: Observation, turn: int, rng: Random) -> str:
        """Return the other player's last move or, at random, another; any in the first round."""
        legal, history = self.legal(seen), seen.fields.get("history") or ()
        if not history or history[-1]["theirs"] not in legal:
            return super().move(seen, turn, rng)
        last = history[-1]["theirs"]
        others = [move for move in legal if move != last]
        return rng.choice(others) if others and rng.random() < self.errs else last
