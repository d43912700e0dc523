"""MAGRPO: joint returns to go, centred within the group."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

from selfplay.credit.base import StatelessCredit, centred, group_advantages, samples, standardized
from selfplay.credit.joint_actions import CrossedReturns, Over
from selfplay.credit.replay import ReplayedArena
from selfplay.credit.team_return import TeamReturns
from selfplay.credit.tree import candidates
from selfplay.errors import check_choice
from selfplay.types import Group, Sample

Joint = Literal["aligned", "cross"]


class MAGRPO(StatelessCredit):
    """A_t = R_t - mean over the group of R_t; R_t = r_t + g_t * R_{t+1} (2508.04652).

    r_t is the mean reward of all agents in stage t, with or without a turn (see `team_return`), and
    g_t is `discount` if a new round begins after stage t, else 1. A round ends when an agent acts a
    second time. If the sampler branches, R_{t+1} is the mean over the next stage's candidates, and
    the candidates of one node are compared. Independent siblings are compared move by move.

    aligned: an agent's g-th action is played with the g-th action of the others, and one joint
    return credits them all. cross: all combinations are played, and an action's return is the mean
    over the combinations that contain it (`over=sum`: their sum, as in the released trainer, which
    is G^(N-1) times the gradient). `std` divides by the group's standard deviation (over G-1), as
    in the paper's first version. CoMLRL 1.4.3 divides (over G) with `advantage_normalization`.

    Without `std` the expected gradient is (G-1)/G times that of the team's return (with a discount:
    the sum of R_t times the score), also if agents have no turn or episodes end early. A turn that
    no sibling has is compared with the siblings' R from its stage on. Failure mode: an agent's
    advantage contains the noise of its partners' samples (cross averages it out for G^N plays of
    the arena). In a zero-sum game the team's return is always 0.
    """

    compares = "tree"

    team = True

    def __init__(
        self,
        *,
        discount: float = 1.0,
        std: bool = False,
        epsilon: float = 1e-6,
        joint: Joint = "aligned",
        over: Over = "mean",
        most_joint_actions: int = 4096,
        arena: Callable[[], ReplayedArena] | None = None,
    ) -> None:
        """Args:
        discount: gamma per round, in [0, 1].
        std: True divides by the standard deviation of the group plus `epsilon`.
        epsilon: Added to the standard deviation.
        joint: aligned or cross, see above.
        over, most_joint_actions, arena: Settings of cross, see `CrossedReturns`.
        """
        check_choice("joint", joint, get_args(Joint))
        self.returns = TeamReturns(discount=discount)
        self.scale = partial(standardized, epsilon=epsilon) if std else centred
        self.absent = None if std else self.returns.absent
        self.replays = joint == "cross"
        make = partial(CrossedReturns, arena, over=over, most=most_joint_actions)
        self.crossed = make() if self.replays else None

    @property
    def min_group_size(self) -> int:
        """2: each agent is compared with itself in the siblings."""
        return 2

    def metrics(self) -> Mapping[str, float]:
        """Return the number of replays of joint actions, and the number of those that broke."""
        return self.crossed.metrics() if self.crossed else {}

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        turns = candidates(groups, self.returns)
        if self.crossed:
            turns = self.crossed.judge(turns)
        advantages = group_advantages(
            turns,
            key=lambda c: (c.group.id, c.turn.agent, c.move, c.node),
            advantage=self.scale,
            absent=self.absent,
        )
        return samples(turns, advantages)
