"""MAGRPO: joint returns to go, centred within the group."""

from collections.abc import Sequence
from functools import partial

from selfplay.credit.comparison import (
    Stateless,
    centred,
    compare,
    plays,
    standardized,
    team_return_to_go,
)
from selfplay.types import Group, Sample


class MAGRPO(Stateless):
    """A_t = R_t - mean over the group of R_t; R_t = r_t + discount * R_{t+1} (2508.04652).

    One joint return credits every agent's turn of round t alike (aligned joint actions: the g-th
    action of each agent with the g-th of the others). `std` divides by the spread as the first
    version of the paper did; the released trainer does not. The expected gradient is (G-1)/G
    times that of the team's return. Failure mode: an agent's advantage contains the noise of its
    partners' samples, and a round that few siblings reach is compared among few.
    """

    def __init__(self, *, discount: float = 1.0, std: bool = False, epsilon: float = 1e-6) -> None:
        """`discount` is gamma per round; `std` divides by the group's standard deviation."""
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount lies in [0, 1], not {discount}")
        self.discount, self.std, self.epsilon = discount, std, epsilon

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns."""
        scale = partial(standardized, epsilon=self.epsilon) if self.std else centred
        return compare(
            plays(groups, partial(team_return_to_go, discount=self.discount)),
            key=lambda play: (play.group.id, play.turn.agent, play.number),
            advantage=scale,
        )
