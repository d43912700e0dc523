"""Advantage Alignment: credits a turn also for its effect on the other agents, by the past."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

from selfplay.credit.base import (
    GroupRelative,
    by_stage,
    group_advantages,
    learnable_turns,
    leave_one_out,
    own_return_to_go,
    samples,
)
from selfplay.types import Group, Sample, Turn


class AdvantageAlignment(GroupRelative):
    """A*_t = A_t + beta * discount * (sum over k < t of discount^(t-k) A_k) * B_t (2406.14662).

    A_t is the advantage of the agent's turn t: its discounted return to go minus the mean of the
    siblings' at their turn t (the group-relative baseline of 2511.19405); if no sibling has such a
    turn, minus 0. B_t is the sum of the other agents' advantages at this stage; an agent that does
    not act at it counts with its last turn before. An agent that gained so far is paid for helping
    the others, and one that lost is paid for harming them: in a repeated dilemma it learns to
    cooperate with players that cooperate, and to retaliate.

    Turns of opponents and frozen policies are part of the sums, but are no samples. With beta 0 and
    discount 1 the expected gradient is exactly the policy gradient; with another beta it is not the
    gradient of the agent's return. The second term is a product of two advantages: for rewards c
    times as large, divide beta by c. Failure mode: a move that costs the agent little and the
    others much stays as a punishment, such as an illegal move that ends a round without an outcome.
    """

    def __init__(self, *, beta: float = 0.5, discount: float = 0.9) -> None:
        """Args:
            beta: Weight of the second term, in 1 / reward.
            discount: gamma per turn of the agent, in [0, 1], of returns and of past advantages.

        Raises ValueError for a discount outside [0, 1].
        """
        super().__init__(group_by="agent")
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount lies in [0, 1], not {discount}")
        self.beta, self.discount = beta, discount
        self._share = 0.0

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns."""
        returns = partial(own_return_to_go, discount=self.discount)
        turns = learnable_turns(groups, returns, frozen=True)
        own = group_advantages(
            turns,
            key=lambda credited: (self.among(credited), credited.number),
            advantage=leave_one_out,
            absent=lambda credited, sibling: 0.0,
        )
        added = []
        values = iter(own)
        for _, episode in groupby(turns, lambda credited: (credited.group.id, credited.episode)):
            added += self._added([credited.turn for credited in episode], values)
        size = sum(abs(advantage) for advantage in own)
        self._share = sum(abs(term) for term in added) / size if size else 0.0
        learns = [row for row, credited in enumerate(turns) if credited.turn.trainable]
        return samples([turns[row] for row in learns], [own[row] + added[row] for row in learns])

    def _added(self, turns: Sequence[Turn], values: Iterator[float]) -> list[float]:
        """Return the second term of each turn of an episode; `values` yields their advantages."""
        latest: dict[str, float] = {}  # advantage of an agent's last turn
        past: dict[str, float] = {}  # discounted sum of an agent's advantages before this stage
        added = []
        for acting in by_stage(turns):
            own = [next(values) for _ in acting]
            latest |= {turn.agent: value for turn, value in zip(acting, own, strict=True)}
            for turn in acting:
                others = sum(value for agent, value in latest.items() if agent != turn.agent)
                added.append(self.beta * self.discount * past.get(turn.agent, 0.0) * others)
            for turn, value in zip(acting, own, strict=True):
                if turn.final:
                    past[turn.agent] = self.discount * (past.get(turn.agent, 0.0) + value)
        return added

    def metrics(self) -> Mapping[str, float]:
        """Return `alignment`: the size of the second term relative to the first."""
        return {"alignment": self._share}
