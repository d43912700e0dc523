"""RAE: each return minus a running average of its agent's or role's returns in its arena."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, get_args

from selfplay.credit.base import CreditedTurn, CreditMethod, learnable_turns, own_return, samples
from selfplay.errors import check_choice
from selfplay.types import Group, Sample

By = Literal["agent", "role"]
Order = Literal["subtract_first", "update_first"]


class RAE(CreditMethod):
    """A = R - b; then b <- decay * b + (1 - decay) * R; b per arena, agent or role, and policy.

    From SPIRAL (2506.24119). R is the sum of the agent's rewards in the whole episode. Episodes are
    taken in order, as in the released code: all agents are judged by the averages from before the
    episode, and each average then moves once, by the mean of its returns. An average whose agents
    have no turn does not move. So no return is part of its own baseline, and the expected gradient
    is exactly the policy gradient, also if agents have no turn. `order="update_first"`, printed in
    the paper, gives `decay` times the policy gradient (without `correct_start`) if an average gets
    one return per episode. With several returns it is biased, because the partners' returns are in
    the baseline. Failure mode: b starts at 0, lags, and is the same for all tasks.
    """

    compares = "batch"

    def __init__(
        self,
        *,
        decay: float = 0.95,
        by: By = "agent",
        order: Order = "subtract_first",
        correct_start: bool = False,
    ) -> None:
        """Args:
            decay: Weight of the average before an episode, in [0, 1).
            by: Owner of an average: each agent, or all agents of a role together.
            order: subtract_first judges a return before it enters the average; update_first after.
            correct_start: True divides b by 1 - decay^episodes, as Adam does with its averages.

        Raises ValueError for a setting with a value that is not listed above.
        """
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay lies in [0, 1), not {decay}")
        check_choice("by", by, get_args(By))
        check_choice("order", order, get_args(Order))
        self.decay, self.by, self.order, self.correct_start = decay, by, order, correct_start
        self._averages: dict[tuple[str, str, str], tuple[float, int]] = {}

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return advantages of all turns, and update the averages."""
        turns = learnable_turns(groups, own_return)
        advantages: list[float] = []
        for episode in (list(t) for _, t in groupby(turns, lambda c: (c.group.id, c.episode))):
            baselines = {self._key(c): self._baseline(self._key(c)) for c in episode}
            for key in baselines:
                paid = {p.turn.agent: p.value for p in episode if self._key(p) == key}
                average, count = self._averages.get(key, (0.0, 0))
                mean = sum(paid.values()) / len(paid)
                self._averages[key] = (self.decay * average + (1 - self.decay) * mean, count + 1)
            if self.order == "update_first":
                baselines = {key: self._baseline(key) for key in baselines}
            advantages += [credited.value - baselines[self._key(credited)] for credited in episode]
        return samples(turns, advantages)

    def _key(self, credited: CreditedTurn) -> tuple[str, str, str]:
        arena, turn = credited.group.episodes[credited.episode].arena, credited.turn
        return (arena, turn.agent if self.by == "agent" else turn.role, turn.policy)

    def _baseline(self, key: tuple[str, str, str]) -> float:
        average, count = self._averages.get(key, (0.0, 0))
        return average / (1 - self.decay**count) if self.correct_start and count else average

    def metrics(self) -> dict[str, float]:
        """Return the present averages as `baseline/<arena>/<name>/<policy>`."""
        return {f"baseline/{'/'.join(key)}": self._baseline(key) for key in self._averages}

    def state_dict(self) -> dict[str, Any]:
        """Return arena, name, policy, average and number of episodes of each average."""
        return {"averages": [[*key, *value] for key, value in self._averages.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the averages. Raises ValueError if the state belongs to another method."""
        if set(state) != {"averages"}:
            raise ValueError(f"RAE keeps its averages, but got {sorted(state)}")
        self._averages = {(a, name, policy): (b, n) for a, name, policy, b, n in state["averages"]}
