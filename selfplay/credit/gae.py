"""GAE: the critic's errors from each turn on, discounted and summed."""

from collections.abc import Mapping, Sequence
from functools import partial

from selfplay.credit import Stateful
from selfplay.credit.base import StatelessCredit, learnable_turns, samples, whitened
from selfplay.credit.critic import Critic, Sees, states_of
from selfplay.types import Episode, Group, Sample


class GAE(StatelessCredit):
    """A_t = d_t + discount * gae_lambda * A_{t+1}, d_t = r_t + discount * V_{t+1} - V_t.

    From 1506.02438, over turns instead of tokens: t counts the agent's own turns, V_t is read at
    the end of turn t's prompt, and V is 0 after the agent's last turn, in a truncated episode too.
    The discounted rewards of turns that the arena leaves out are part of r_t of the turn before.
    The critic is read before it is trained on this batch's returns A + V. All tokens of a turn have
    its advantage; there is no value per token. `algorithm=ppo` still clips each token's ratio.

    With gae_lambda 1, discount 1 and whiten off the expected gradient is exactly the policy
    gradient for any critic. Otherwise it is biased: with a smaller lambda by the critic's errors,
    with whitening by the batch's own spread. If a prompt does not show the earlier turns (`memory:
    none`), a smaller lambda is biased with a perfect critic too: the value of the next prompt is a
    mean over all histories that lead to it, so it does not show the effect of this turn's action.
    Keep gae_lambda at 1 in this case. Failure mode: a critic that adapts more slowly than the
    policy.
    """

    compares = "batch"

    def __init__(
        self,
        *,
        critic: Critic,
        sees: Sees = "own",
        gae_lambda: float = 0.95,
        discount: float = 1.0,
        whiten: bool = True,
    ) -> None:
        """Args:
        critic: Critic that returns the values and is trained on the returns.
        sees: own: the agent's prompt. all: the prompts of all agents that learn (a centralised
            critic), see `critic.states_of`.
        gae_lambda: 1 uses the rewards alone, 0 the critic from the next turn on.
        discount: gamma per turn.
        whiten: True whitens over all trainable tokens of a policy's batch, as PPO does.
        """
        if not (0.0 <= gae_lambda <= 1.0 and 0.0 <= discount <= 1.0):
            raise ValueError(f"gae_lambda and discount lie in [0, 1]: {gae_lambda}, {discount}")
        self.critic, self.sees, self.whiten = critic, sees, whiten
        self.gae_lambda, self.discount = gae_lambda, discount
        self._metrics: Mapping[str, float] = {}

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns, then train the critic."""
        turns = learnable_turns(groups, partial(_earned, discount=self.discount))
        states = states_of(turns, self.sees)
        values = self.critic.values(states)
        advantages = [0.0] * len(turns)
        after: dict[tuple[str, int, str], tuple[int, float, float]] = {}
        for row in reversed(range(len(turns))):
            place, number, reward = turns[row].trajectory, turns[row].number, turns[row].value
            next_number, next_value, next_advantage = after.get(place, (number + 1, 0.0, 0.0))
            discount = self.discount ** (next_number - number)
            surprise = reward + discount * next_value - values[row]
            advantages[row] = surprise + discount * self.gae_lambda * next_advantage
            after[place] = (number, values[row], advantages[row])
        returns = [a + v for a, v in zip(advantages, values, strict=True)]
        self._metrics = self.critic.fit(states, returns)
        return samples(turns, whitened(turns, advantages) if self.whiten else advantages)

    def modules(self) -> Mapping[str, Stateful]:
        """Return the critic by name."""
        return {"critic": self.critic}

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the critic's last update."""
        return self._metrics


def _earned(episode: Episode, *, discount: float) -> list[float]:
    """Return each turn's reward plus its agent's discounted pay until the next trainable turn."""
    after: dict[str, float] = {}
    values = []
    for turn in reversed(episode.turns):
        values.append(turn.reward + discount * after.get(turn.agent, 0.0))
        after[turn.agent] = 0.0 if turn.trainable else values[-1]
    return values[::-1]
