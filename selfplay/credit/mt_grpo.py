"""MT-GRPO: what a turn earned and how it all ended, each compared with the siblings for itself."""

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

    The outcome is the reward of the agent's last turn. A turn's own value is what the agent was
    paid from it on, until before its last; the siblings' turns of the same number are compared. On
    a last turn that value is 0, so where all siblings take as many turns it is judged by the
    outcome alone. A sibling that stopped earlier than the others pays for what they earned by
    going on, as an answer without any tool call does in the released code.

    `std=False` only centres: with weight 1 and `group_by="agent"` the expected gradient is then
    (G-1)/G times the policy gradient, also where siblings take fewer turns or none. A turn of a
    number that no sibling has is compared with 0. With std it is biased, and a constant reward of
    the turns adds nothing however large it is.
    Failure mode: an outcome that hardly varies is blown up to the size of the turns' rewards.
    """

    def __init__(
        self,
        *,
        weight: float = 1.0,
        group_by: GroupBy = "role",
        std: bool = True,
        epsilon: float = 1e-6,
    ) -> None:
        """`weight` is c; `group_by`: whom to compare with, see `comparison.group_key`."""
        super().__init__(group_by=group_by)
        self.weight = weight
        self.scale = partial(standardized, epsilon=epsilon) if std else centred

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""

        def turn_of(play: CreditedTurn) -> Hashable:
            return (self.among(play), play.number)

        found, before = learnable_turns(groups, outcome), learnable_turns(groups, before_outcome)
        ends = group_advantages(found, key=self.among, advantage=self.scale, absent=self.absent)
        nothing = None if self.absent is None else lambda play, sibling: 0.0
        turns = group_advantages(before, key=turn_of, advantage=self.scale, absent=nothing)
        both = zip(ends, turns, strict=True)
        return samples(found, [end + self.weight * turn for end, turn in both])


def outcome(episode: Episode) -> list[float]:
    """For every turn, the reward of its agent's last turn."""
    last = {turn.agent: turn.reward for turn in episode.turns}
    return [last[turn.agent] for turn in episode.turns]


def before_outcome(episode: Episode) -> list[float]:
    """For every turn, what its agent is paid from it on until before its last turn."""
    to_go: dict[str, float] = {}
    values = []
    for turn in reversed(episode.turns):
        to_go[turn.agent] = to_go[turn.agent] + turn.reward if turn.agent in to_go else 0.0
        values.append(to_go[turn.agent])
    return values[::-1]
