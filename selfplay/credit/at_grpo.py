"""AT-GRPO: compares candidates for the same turn of the same agent after exactly the same
prompt."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, get_args

from selfplay.credit.base import (
    StatelessCredit,
    centred,
    group_advantages,
    own_return_to_go,
    samples,
    standardized,
)
from selfplay.credit.team_return import Judged, team_return_to_go
from selfplay.credit.tree import Candidate, candidates
from selfplay.errors import check_choice
from selfplay.types import Group, Sample


class ATGRPO(StatelessCredit):
    """A = (V - mean) / (std + epsilon) among candidates of one agent, turn and prompt (2510.11062).

    V is the return to go of the candidate: R_t = r_t + discount * R_{t+1}, of the agent's rewards
    or of the mean over all agents (see `team_return.team_return_to_go`). At a branching, R_{t+1}
    is the mean over the next stage's candidates. (The released code scores each candidate at once
    instead, by a reward that the arena gives per turn.) A shared turn is one sample.

    With `std=False`, K candidates of each node and all of them continued, the expected gradient at
    a stage is (K-1)/K times the policy gradient (up to (nK-1)/nK if n nodes show one prompt). In a
    group without branches it is, at each prompt, E[(n-1)/n] times the policy gradient, where n is
    the number of siblings that reached the prompt. Prompts that are reached rarely, because agents
    have no turn or episodes end early, have less weight. Deeper stages have more candidates, and
    so more weight in a mean over samples. If the sampler continues only the best candidate, later
    stages are reached as often as the best candidate leads to them. A continued candidate is then
    judged by more episodes than its siblings. Its estimate includes the episode that selected it,
    so that it is biased upwards. Failure mode: a prompt that occurs once has no signal; this
    includes all turns after the last branching.
    """

    compares = "tree"

    tree: ClassVar[bool] = True

    def __init__(
        self,
        *,
        returns: Judged = "own",
        discount: float = 1.0,
        std: bool = True,
        epsilon: float = 1e-6,
    ) -> None:
        """Args:
            returns: own: rewards of the agent. team: mean rewards of all agents.
            discount: gamma in [0, 1], per turn of the agent (own) or per round (team). A new round
                begins when an agent acts a second time.
            std: True divides by the standard deviation of the candidates.
            epsilon: Small number that is added to the standard deviation.

        Raises ValueError for a setting with a value that is not listed above.
        """
        check_choice("returns", returns, get_args(Judged))
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount lies in [0, 1], not {discount}")
        self.team = returns == "team"
        judged = own_return_to_go if returns == "own" else team_return_to_go
        self.returns = partial(judged, discount=discount)
        self.scale = partial(standardized, epsilon=epsilon) if std else centred

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return one sample per turn that was played."""
        turns = candidates(groups, self.returns)
        return samples(turns, self._advantages(turns))

    def has_signal(self, group: Group) -> bool:
        """Return True if two candidates of one prompt have different returns."""
        return any(self._advantages(candidates([group], self.returns)))

    def _advantages(self, turns: Sequence[Candidate]) -> list[float]:
        """Return the advantage of each turn among the turns with its agent, move and prompt."""
        return group_advantages(
            turns,
            key=lambda c: (c.group.id, c.turn.agent, c.move, c.turn.prompt_ids),
            advantage=self.scale,
        )
