"""GiGPO: compares whole episodes in the group, and single turns that were taken from one state."""

import json
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Literal, get_args

from selfplay.credit.base import (
    CreditedTurn,
    GroupBy,
    GroupRelative,
    centred,
    group_advantages,
    learnable_turns,
    own_return,
    own_return_to_go,
    samples,
    standardized,
)
from selfplay.errors import check_choice
from selfplay.types import Group, Sample

Mode = Literal["mean_norm", "mean_std_norm"]


class GiGPO(GroupRelative):
    """A = A_episode + weight * A_step (2505.10978).

    A_episode compares R, the sum of the agent's rewards, one value per trajectory (the released
    code: one per turn, unless `compute_mean_std_cross_steps=False`). A_step compares
    R_t = r_t + discount * R_{t+1} over the agent's own turns, among all turns of the group that
    were taken from the same state (the paper's anchor state): the messages that were added for this
    turn (for a role without memory, the prompt). mean_norm subtracts the mean, mean_std_norm also
    divides by the standard deviation.

    With mean_norm, discount 1 and `group_by="agent"`, if no trajectory reaches a state twice, the
    gradient at a state is the exact one times (G-1)/G + weight * E[(n-1)/n], where n is the number
    of turns in this state. Every state keeps its direction, but states that are visited often
    weigh more: if a sibling reaches a state with probability p, n is 1 + Binomial(G-1, p). The
    first part holds for agents without a turn and episodes that end early. With mean_std_norm it is
    biased. Failure mode: a state that shows a step counter or the history equals no other, so
    A_step is 0.
    """

    def __init__(
        self,
        *,
        weight: float = 1.0,
        discount: float = 0.95,
        mode: Mode = "mean_norm",
        group_by: GroupBy = "role",
        epsilon: float = 1e-6,
    ) -> None:
        """Args:
            weight: Weight of A_step.
            discount: gamma per turn of an agent, in [0, 1].
            mode: mean_norm subtracts the mean; mean_std_norm also divides by the standard
                deviation.
            group_by: Turns that are compared, see `base.group_key`.
            epsilon: Small number that is added to the standard deviation.

        Raises ValueError for a setting with a value that is not listed above.
        """
        super().__init__(group_by=group_by)
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount lies in [0, 1], not {discount}")
        check_choice("mode", mode, get_args(Mode))
        self.weight, self.returns = weight, partial(own_return_to_go, discount=discount)
        self.scale = centred if mode == "mean_norm" else partial(standardized, epsilon=epsilon)
        if mode != "mean_norm":
            self.absent = None

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""

        def state_of(credited: CreditedTurn) -> Hashable:
            return (self.among(credited), anchor(credited))

        turns, steps = learnable_turns(groups, own_return), learnable_turns(groups, self.returns)
        whole = group_advantages(turns, key=self.among, advantage=self.scale, absent=self.absent)
        local = group_advantages(steps, key=state_of, advantage=self.scale, each="turn")
        both = zip(whole, local, strict=True)
        return samples(turns, [episode + self.weight * step for episode, step in both])


def anchor(credited: CreditedTurn) -> Hashable:
    """Return the messages that were added for this turn; the prompt's ids if there are none."""
    messages = credited.turn.messages
    return json.dumps(messages, sort_keys=True) if messages else credited.turn.prompt_ids
