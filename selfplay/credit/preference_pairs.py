"""Preference pairs: siblings that answered the same prompt, one better than the other."""

from collections.abc import Hashable, Sequence
from typing import Literal

from selfplay.credit.base import CreditedTurn, StatelessCredit, own_return
from selfplay.credit.tree import candidates
from selfplay.types import Group, Sample


class PreferencePairs(StatelessCredit):
    """Pairs for objective=dpo: advantage +1 for the better of two turns, -1 for the worse.

    Compared are turns of one group in which the same agent saw the very same prompt, by what the
    agent was paid in the whole episode. In a tree a turn is there once, with the mean over its
    branches, as MALT (2412.01928) judges a generation by its critiques and these by their
    refinements. `best_worst` makes one pair of every such set, `all` every pair whose returns
    differ by more than `margin` (MALT pairs all of the correct with all of the wrong). Failure
    mode: a set of equal returns makes no pair, and an agent whose earlier moves differ from its
    siblings' shares no later prompt with them.
    """

    def __init__(
        self, *, pairs: Literal["best_worst", "all"] = "best_worst", margin: float = 0.0
    ) -> None:
        """A pair's returns differ by more than `margin` and by more than rounding errors."""
        if margin < 0:
            raise ValueError(f"margin is at least 0, not {margin}")
        self.pairs, self.margin = pairs, margin

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Two samples for every pair; a turn that is in several pairs is in several samples."""
        sets: dict[Hashable, list[CreditedTurn]] = {}
        for play in candidates(groups, own_return):
            key = (play.group.id, play.turn.agent, play.turn.prompt_ids)
            sets.setdefault(key, []).append(play)
        samples: list[Sample] = []
        for members in sets.values():
            ranked = sorted(members, key=lambda play: play.value, reverse=True)
            if self.pairs == "best_worst":
                chosen = [(ranked[0], ranked[-1])]
            else:
                chosen = [(b, w) for i, b in enumerate(ranked) for w in ranked[i + 1 :]]
            for better, worse in chosen:
                if better.value - worse.value > self._least(better, worse):
                    pair = f"{better.group.id}/{better.turn.agent}/{len(samples) // 2}"
                    samples += [_sample(better, pair, 1.0), _sample(worse, pair, -1.0)]
        return samples

    def _least(self, better: CreditedTurn, worse: CreditedTurn) -> float:
        """The margin plus the rounding error that a difference may have."""
        return self.margin + 1e-12 * max(1.0, abs(better.value), abs(worse.value))


def _sample(play: CreditedTurn, pair: str, advantage: float) -> Sample:
    return Sample(
        turn=play.turn,
        advantage=advantage,
        group=play.group.id,
        episode=play.episode,
        pair=pair,
    )
