"""Team credit: one advantage for all turns of an episode, from comparing whole episodes."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from selfplay.credit.base import StatelessCredit, centred, learnable_turns, samples, standardized
from selfplay.credit.team_return import team_return
from selfplay.types import Group, Sample, Status


class TeamGRPO(StatelessCredit):
    """A = (R - mean) / (std + epsilon) over the group's episodes, for all their turns (2510.04678).

    R is the mean return of all agents in the episode, with or without a turn; if a team
    shares one reward, R is that reward. A planner and its workers share the A of their episode, as
    in MATPO. An episode counts once in mean and std, whatever its numbers of agents and turns and
    whichever policies play them. So the number of agents may differ between siblings, where methods
    that compare an agent with itself would compare a worker only with the siblings that called it.

    With `std=False` the expected gradient is (G-1)/G times that of the team's return, also if
    agents come late or never: the other episodes are independent of the turn. Failure mode: a turn
    gets the noise of all other turns of its episode, so that a right worker is blamed for a wrong
    planner; and a group of equal returns has no signal. Do not use it with opposing interests: the
    mean over all agents rewards some of them for losing. One wolf with +1 against four villagers
    with -1 has the team mean -0.6 when it wins.
    """

    compares = "group"

    team = True

    def __init__(self, *, std: bool = True, epsilon: float = 1e-6) -> None:
        """Args:
        std: True divides by the standard deviation of the returns plus `epsilon`.
        epsilon: Added to the standard deviation.
        """
        self.scale = partial(standardized, epsilon=epsilon) if std else centred

    @property
    def min_group_size(self) -> int:
        """2: an episode is compared with its siblings."""
        return 2

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        found: dict[tuple[str, int], float] = {}
        for group in groups:
            returns = {
                index: team_return(episode)
                for index, episode in enumerate(group.episodes)
                if episode.status is not Status.FAILED
            }
            scaled = self.scale(np.array(list(returns.values()), dtype=np.float64))
            found |= {(group.id, i): float(a) for i, a in zip(returns, scaled, strict=True)}
        turns = learnable_turns(groups, lambda episode: [0.0] * len(episode.turns))
        return samples(turns, [found[each.group.id, each.episode] for each in turns])
