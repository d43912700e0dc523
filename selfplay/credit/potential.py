"""Potential-based shaping: a reward term that changes no optimal policy."""

from dataclasses import dataclass
from math import isfinite

from selfplay.errors import ConfigError
from selfplay.types import Episode, Status


@dataclass(frozen=True, kw_only=True)
class PotentialBased:
    """Adds F = weight * (discount * phi(s') - phi(s)) to every move (Ng, Harada, Russell 1999).

    phi(s) is `Arena.potential` at the agent's move, which records keep as `potential` in the move's
    `info`, and s' is the state at the agent's next move. After the agent's last move phi is 0, also
    in a truncated episode. So the discounted sum of the term over an agent's moves is -weight *
    phi(s_0) for all actions, and every policy that is optimal with the term is optimal without it.

    `discount` must be that of the credit method, which is 1 in all methods that sum an agent's
    rewards. Such methods, if they compare episodes with the same first state, see no difference at
    all. Return-to-go is lowered by weight * phi(s), which is a baseline: it changes the variance of
    the gradient and not its mean. Methods that weigh single rewards (`gae` with gae_lambda below 1,
    `turn`) learn differently during training. Clipping, whitening and other terms of `shaping`
    after this one may break the guarantee.

    Episodes that branch are refused if a shared move has different next states.
    """

    discount: float = 1.0
    """Discount of the credit method, per move of the agent."""
    weight: float = 1.0
    """Factor of the potential, in reward."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.discount <= 1.0 or not isfinite(self.weight):
            raise ValueError(
                f"discount lies in [0, 1] and weight is finite, not {self.discount}, {self.weight}"
            )

    def of_episode(self, episode: Episode) -> list[float]:
        """Return the rewards of all turns with the term; raises ConfigError for an arena without
        potential."""
        rewards, after = [turn.reward for turn in episode.turns], dict[str, float]()
        for place in reversed(range(len(rewards))):
            turn = episode.turns[place]
            potential = turn.info.get("potential")
            if potential is None:
                continue
            gained = self.discount * after.get(turn.agent, 0.0) - potential
            rewards[place] += self.weight * gained
            after[turn.agent] = potential
        if not after and episode.turns and episode.status is Status.FINISHED:
            raise ConfigError(
                f"shaping: PotentialBased needs a potential, and the arena {episode.arena} has "
                "none; write Arena.potential, or choose shaping=none"
            )
        return rewards
