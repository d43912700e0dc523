"""Potential-based shaping: a reward term that changes no optimal policy."""

from dataclasses import dataclass
from math import isfinite

from selfplay.errors import ConfigError
from selfplay.types import Episode, Status


@dataclass(frozen=True, kw_only=True)
class PotentialBased:
    """Adds F = weight * (discount * phi(s') - phi(s)) to every turn (Ng, Harada, Russell 1999).

    phi(s) is `Arena.potential` at the agent's move, which records keep as `potential` in the move's
    `info`; tool calls have the phi of the move that they lead to. s' is the state at the agent's
    next turn. After the agent's last move phi is 0, also in a truncated episode. A turn that the
    arena leaves out gets no F, and s' of the turn before it is the state after it, discounted once
    more. So the discounted sum of the term over an agent's turns is -weight * phi(s_0) for all
    actions, and every policy that is optimal with the term is optimal without it.

    `discount` must be that of the credit method, which is 1 in all methods that sum an agent's
    rewards. If such a method compares episodes with the same first state, the term does not change
    its advantages. Return-to-go is lowered by weight * phi(s), which is a baseline: it changes the
    variance of the gradient and not its mean. Methods that weigh single rewards (`gae` with
    gae_lambda below 1, `turn`) learn differently during training. Clipping, whitening and other
    terms of `shaping` after this one may break the guarantee.

    Episodes that branch are refused if a shared move has different next states.
    """

    discount: float = 1.0
    """Discount of the credit method, per turn of the agent; tool calls are turns."""
    weight: float = 1.0
    """Factor of the potential, in reward per unit of potential."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.discount <= 1.0 or not isfinite(self.weight):
            raise ValueError(
                f"discount lies in [0, 1] and weight is finite, not {self.discount}, {self.weight}"
            )

    def of_episode(self, episode: Episode) -> list[float]:
        """Return the rewards of all turns with the term; raises ConfigError for an arena without
        potential."""
        rewards = [turn.reward for turn in episode.turns]
        ahead, present = dict[str, float](), dict[str, float | None]()
        for place in reversed(range(len(rewards))):
            turn = episode.turns[place]
            if turn.final:
                present[turn.agent] = turn.info.get("potential")
            potential = present.get(turn.agent)
            gained = self.discount * ahead.get(turn.agent, 0.0)
            if potential is None or not turn.trainable:
                ahead[turn.agent] = gained
                continue
            rewards[place] += self.weight * (gained - potential)
            ahead[turn.agent] = potential
        known = any(turn.info.get("potential") is not None for turn in episode.turns)
        if not known and episode.turns and episode.status is Status.FINISHED:
            raise ConfigError(
                f"shaping: PotentialBased needs a potential, and the arena {episode.arena} has "
                "none; write Arena.potential, or choose shaping=none"
            )
        return rewards
