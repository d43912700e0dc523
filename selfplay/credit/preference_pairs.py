"""Preference pairs: siblings that answered the same prompt, one better than the other."""

from collections.abc import Hashable, Sequence
from typing import Literal

from selfplay.credit.base import CreditedTurn, StatelessCredit, own_return
from selfplay.credit.tree import candidates
from selfplay.types import Group, Sample


class PreferencePairs(StatelessCredit):
    """Pairs for objective=dpo: advantage +1 for the better of two turns, -1 for the worse.

    It compares turns of one group in which the same agent saw exactly the same prompt, by the sum
    of the agent's rewards in the whole episode. In a tree a turn counts once, with the mean over
    its branches, as MALT (2412.01928) judges a generation by its critiques and these by their
    refinements. `best_worst` makes one pair of every set of turns; `all` makes every pair whose
    returns differ by more than `margin` (MALT pairs all correct turns with all wrong turns).
    Failure mode: a set of equal returns makes no pair, and an agent whose earlier moves differ from
    its siblings' shares no later prompt with them.
    """

    def __init__(
        self, *, pairs: Literal["best_worst", "all"] = "best_worst", margin: float = 0.0
    ) -> None:
        """Args:
        pairs: best_worst makes one pair per prompt, all every pair.
        margin: Difference of returns that a pair must exceed; rounding errors never count.
        """
        if margin < 0:
            raise ValueError(f"margin is at least 0, not {margin}")
        self.pairs, self.margin = pairs, margin

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return two samples for every pair; a turn that is in several pairs is in several
        samples."""
        sets: dict[Hashable, list[CreditedTurn]] = {}
        for credited in candidates(groups, own_return):
            key = (credited.group.id, credited.turn.agent, credited.turn.prompt_ids)
            sets.setdefault(key, []).append(credited)
        samples: list[Sample] = []
        for members in sets.values():
            ranked = sorted(members, key=lambda credited: credited.value, reverse=True)
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
        """Return the margin plus the rounding error that a difference may have."""
        return self.margin + 1e-12 * max(1.0, abs(better.value), abs(worse.value))


def _sample(credited: CreditedTurn, pair: str, advantage: float) -> Sample:
    return Sample(
        turn=credited.turn,
        advantage=advantage,
        group=credited.group.id,
        episode=credited.episode,
        pair=pair,
    )
