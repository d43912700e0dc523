"""MT-GRPO: compares a turn's own rewards and the final outcome with the siblings separately."""

from collections.abc import Hashable, Sequence
from functools import partial

from selfplay.credit.base import (
    CreditedTurn,
    GroupBy,
    GroupRelative,
    centred,
    group_advantages,
    learnable_turns,
    samples,
    standardized,
)
from selfplay.types import Episode, Group, Sample


class MTGRPO(GroupRelative):
    """A = A_outcome + weight * A_turn, each (x - mean) / (std + epsilon) in the group (2505.11821).

    The outcome is the reward of the agent's last turn. A turn's own value is the sum of the agent's
    rewards from this turn on, without its last turn; the siblings' turns of the same number are
    compared. On a last turn this value is 0, so that the outcome alone decides if all siblings
    take equally many turns. If a sibling stopped earlier, its last turn is compared with the
    others' turns of that number, as the released code does for an answer without a tool call.

    `std=False` only centres: with weight 1 and `group_by="agent"` the expected gradient is then
    (G-1)/G times the policy gradient, also if siblings take fewer turns or none. A turn whose
    number no sibling has is compared with 0. With std it is biased, and a constant reward of the
    turns has no effect. Failure mode: an outcome that hardly varies is scaled up to the size of the
    turns' rewards.
    """

    def __init__(
        self,
        *,
        weight: float = 1.0,
        group_by: GroupBy = "role",
        std: bool = True,
        epsilon: float = 1e-6,
    ) -> None:
        """Args:
            weight: Weight of A_turn.
            group_by: Turns that are compared, see `base.group_key`.
            std: True divides by the standard deviation.
            epsilon: Small number that is added to the standard deviation.

        Raises ValueError for an unknown `group_by`.
        """
        super().__init__(group_by=group_by)
        self.weight = weight
        self.scale = partial(standardized, epsilon=epsilon) if std else centred
        if std:
            self.absent = None

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""

        def turn_of(credited: CreditedTurn) -> Hashable:
            return (self.among(credited), credited.number)

        turns, before = learnable_turns(groups, outcome), learnable_turns(groups, before_outcome)
        ends = group_advantages(turns, key=self.among, advantage=self.scale, absent=self.absent)
        nothing = None if self.absent is None else lambda credited, sibling: 0.0
        middles = group_advantages(before, key=turn_of, advantage=self.scale, absent=nothing)
        both = zip(ends, middles, strict=True)
        return samples(turns, [end + self.weight * middle for end, middle in both])


def outcome(episode: Episode) -> list[float]:
    """Return, for every turn, the reward of its agent's last turn."""
    last = {turn.agent: turn.reward for turn in episode.turns}
    return [last[turn.agent] for turn in episode.turns]


def before_outcome(episode: Episode) -> list[float]:
    """Return, for every turn, the sum of its agent's rewards from it on, without the last turn."""
    to_go: dict[str, float] = {}
    values = []
    for turn in reversed(episode.turns):
        to_go[turn.agent] = to_go[turn.agent] + turn.reward if turn.agent in to_go else 0.0
        values.append(to_go[turn.agent])
    return values[::-1]
