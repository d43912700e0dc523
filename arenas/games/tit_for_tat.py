"""Demonstrations of tit for tat that errs: a warm start that answers a move in kind, mostly."""

from random import Random
from typing import Any

from arenas.games.random_play import RandomPlay
from selfplay.types import Observation


class TitForTat(RandomPlay):
    """A player that does what the other one did last, but for a share of its moves.

    The names of situations are those of random play, and for the same reason.
    """

    def __init__(self, *, errs: float, **settings: Any) -> None:
        """Args:
        errs: Share of answers that are another legal move than the other player's last one. With
            two moves, 0.5 is random play.
        **settings: Of `RandomPlay`, among them `arena`: a repeated matrix game without messages.
        """
        if not 0 <= errs <= 1:
            raise ValueError("errs lies in [0, 1]")
        self.errs = errs
        super().__init__(**settings)

    def move(self, seen: Observation, turn: int, rng: Random) -> str:
        """The other player's last move or, by chance, another; any in the first round."""
        legal, history = self.legal(seen), seen.fields.get("history") or ()
        if not history or history[-1]["theirs"] not in legal:
            return super().move(seen, turn, rng)
        last = history[-1]["theirs"]
        others = [move for move in legal if move != last]
        return rng.choice(others) if others and rng.random() < self.errs else last
