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
    returns differ by more than `margin`. With a `threshold`, a pair has one turn above it and one
    that is not: MALT calls a turn right if its value is above 0.5, and pairs all right turns with
    all others.
    Failure mode: a set of equal returns makes no pair, and an agent whose earlier moves differ from
    its siblings' shares no later prompt with them.
    """

    compares = "tree"

    def __init__(
        self,
        *,
        pairs: Literal["best_worst", "all"] = "best_worst",
        margin: float = 0.0,
        threshold: float | None = None,
    ) -> None:
        """Args:
        pairs: best_worst: one pair per prompt. all: every pair of two turns.
        margin: Difference of returns that a pair must exceed; rounding errors never count.
        threshold: Only the better turn of a pair has a return above it; None: no such condition.
        """
        if margin < 0:
            raise ValueError(f"margin is at least 0, not {margin}")
        self.pairs, self.margin, self.threshold = pairs, margin, threshold

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
                if self._differ(better, worse):
                    pair = f"{better.group.id}/{better.turn.agent}/{len(samples) // 2}"
                    samples += [_sample(better, pair, 1.0), _sample(worse, pair, -1.0)]
        return samples

    def has_signal(self, group: Group) -> bool:
        """Return True if the group has a pair."""
        return bool(self.assign([group]))

    def _differ(self, better: CreditedTurn, worse: CreditedTurn) -> bool:
        """Return True if the returns of two turns differ enough for a pair. A difference that is
        only a rounding error makes no pair."""
        if self.threshold is not None and not better.value > self.threshold >= worse.value:
            return False
        rounding = 1e-12 * max(1.0, abs(better.value), abs(worse.value))
        return better.value - worse.value > self.margin + rounding


def _sample(credited: CreditedTurn, pair: str, advantage: float) -> Sample:
    return Sample(
        turn=credited.turn,
        advantage=advantage,
        group=credited.group.id,
        episode=credited.episode,
        pair=pair,
    )
