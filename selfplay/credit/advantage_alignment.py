"""Advantage Alignment: a turn is also credited for its effect on the other agents."""

from collections import defaultdict
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

    A_t is the agent's discounted return to go at its turn t minus the mean of the siblings' at
    their turn t (baseline of 2511.19405), or minus 0 if no sibling has such a turn. B_t is the
    other agent's advantage at this stage. The paper has two agents that act at once; here B_t is a
    sum over the others, and one that does not act counts with its last turn. An agent whose past
    advantages add up to more than 0 is credited for helping the others, and one below 0 for harming
    them: in a repeated dilemma it learns reciprocity. Turns of opponents and frozen policies count,
    but are no samples. The expected gradient is the policy gradient with beta 0 and discount 1, and
    a biased one otherwise. For rewards c times as large, divide beta by c; with more others,
    try less. Failure mode: a move that costs its agent little and others much remains a punishment.
    """

    def __init__(self, *, beta: float = 0.5, discount: float = 0.9) -> None:
        """Args:
        beta: Weight of the second term, in 1 / reward.
        discount: gamma in [0, 1]: per turn (also a tool call) of returns, per move of the past.
        """
        super().__init__(group_by="agent")
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount lies in [0, 1], not {discount}")
        self.beta, self.discount = beta, discount
        self._share = 0.0

    def has_signal(self, group: Group) -> bool:
        """Return True if an advantage of the group is not 0."""
        return any(sample.advantage for sample in self._credited([group])[0])

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return the samples of the turns to learn from."""
        made, self._share = self._credited(groups)
        return made

    def _credited(self, groups: Sequence[Group]) -> tuple[list[Sample], float]:
        """Return the samples, and the size of the second term relative to the first."""
        returns = partial(own_return_to_go, discount=self.discount)
        turns = learnable_turns(groups, returns, frozen=True)
        own = group_advantages(
            turns,
            key=lambda credited: (self.among(credited), credited.number),
            advantage=leave_one_out,
            absent=lambda *_: 0.0,
        )
        added, values = list[float](), iter(own)
        for _, episode in groupby(turns, lambda credited: (credited.group.id, credited.episode)):
            added += self._added([credited.turn for credited in episode], values)
        learns = [row for row, credited in enumerate(turns) if credited.turn.trainable]
        made = samples([turns[row] for row in learns], [own[row] + added[row] for row in learns])
        return made, sum(map(abs, added)) / size if (size := sum(map(abs, own))) else 0.0

    def _added(self, turns: Sequence[Turn], advantages: Iterator[float]) -> list[float]:
        """Return the second term of each turn of an episode, whose advantages come next."""
        latest: dict[str, float] = {}  # advantage of an agent's last turn
        past: dict[str, float] = defaultdict(float)  # sum of an agent's advantages before a stage
        added: list[float] = []
        for acting in by_stage(turns):
            own = [next(advantages) for _ in acting]
            latest |= dict(zip([turn.agent for turn in acting], own, strict=True))
            for turn in acting:
                others = sum(value for agent, value in latest.items() if agent != turn.agent)
                added.append(self.beta * self.discount * past[turn.agent] * others)
            for turn, value in zip(acting, own, strict=True):
                if turn.final:
                    past[turn.agent] = self.discount * (past[turn.agent] + value)
        return added

    def metrics(self) -> Mapping[str, float]:
        """Return `alignment`: the size of the second term over the first's in the last batch."""
        return {"alignment": self._share}
