"""The credit methods that `tabular_bakeoff.py` compares in the games of `enumerated_games.py`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from enumerated_games import AGENTS, Game, GameArena, scores

from selfplay.credit.advantage_alignment import AdvantageAlignment
from selfplay.credit.arpo import ARPO
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.counterfactual import Counterfactual
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.gae import GAE
from selfplay.credit.gigpo import GiGPO
from selfplay.credit.grpo import GRPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.mt_grpo import MTGRPO
from selfplay.credit.pass_at_k import PassAtK
from selfplay.credit.rae import RAE
from selfplay.credit.reinforce_pp import ReinforcePlusPlus
from selfplay.credit.rloo import RLOO
from selfplay.credit.team import TeamGRPO
from selfplay.credit.trr import TRR
from selfplay.sampler.independent import Independent
from selfplay.sampler.tree import Branch, Tree
from selfplay.types import Group

BUDGET = 48
"""Completions of a batch: 12 plays of two rounds, or 24 of one."""


def estimate(credit: Any, logits: np.ndarray, batch: Sequence[Group]) -> np.ndarray:
    """Return the mean of advantage times score over all samples, as the learner takes it."""
    weights = np.zeros_like(logits)
    samples = credit.assign(batch)
    for each in samples:
        turn = each.turn
        agent = AGENTS.index(turn.agent)
        weights[agent, turn.prompt_ids[0], turn.completion_ids[0]] += float(each.advantage)
    return scores(weights, logits) / max(len(samples), 1)


class TabularCritic:
    """A critic that keeps a moving average of the returns of each state."""

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = rate
        self.table: dict[tuple[int, ...], float] = {}

    def values(self, states: Sequence[tuple[int, ...]]) -> list[float]:
        """Return the value of each state; 0 if it is new."""
        return [self.table.get(state, 0.0) for state in states]

    def fit(self, states: Sequence[tuple[int, ...]], returns: Sequence[float]) -> dict[str, float]:
        """Move each state's value towards the mean of its returns in this batch."""
        seen: dict[tuple[int, ...], list[float]] = {}
        for state, value in zip(states, returns, strict=True):
            seen.setdefault(state, []).append(value)
        for state, values in seen.items():
            mean = sum(values) / len(values)
            old = self.table.get(state, mean)
            self.table[state] = old + self.rate * (mean - old)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the table."""
        return {"table": list(self.table.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the table."""
        self.table = dict(state["table"])


@dataclass(frozen=True, kw_only=True)
class Method:
    """A credit method and its sampler, with the games in which it is not defined."""

    make: Callable[[Game], Any]
    team: bool = False
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Game to the reason why the method is not defined there."""
    sampler: Callable[[], Any] = lambda: Independent(group_size=4)
    completions: int = 0
    """Completions per group in a game of two rounds; 0: 8 per round, of 4 independent plays."""

    def groups(self, game: Game) -> int:
        """Return the groups of a batch of `BUDGET` completions."""
        return BUDGET // (self.completions or 8 * game.rounds)


def branches() -> Any:
    """Return a sampler of 2 whole plays and 2 branches that share the first round of one."""
    return Branch(group_size=4, initial=2)


def tree() -> Any:
    """Return a sampler of two joint moves, each of which is continued by two others."""
    return Tree(candidates=2, depth=2, go_on="all")


SHORT = dict.fromkeys(("hunt", "pennies"), "one round")
"""Games without a later round at which plays could branch."""
GRADED = dict.fromkeys(("hunt", "steps", "dilemma", "pennies"), "graded")
"""Games whose rewards are not just right or wrong, as pass@k requires."""
CONSTANT = {"pennies": "constant"}
"""Games in which the team's return is constant, so that there is no gradient to estimate."""

METHODS: Mapping[str, Method] = {
    "rloo": Method(make=lambda game: RLOO(group_by="agent")),
    "dr_grpo": Method(make=lambda game: DrGRPO(group_by="agent")),
    "grpo": Method(make=lambda game: GRPO(group_by="agent")),
    "pass_at_k": Method(
        make=lambda game: PassAtK(k=2, group_by="agent", threshold=0.5), refuses=GRADED
    ),
    "trr": Method(make=lambda game: TRR()),
    "reinforce_pp": Method(make=lambda game: ReinforcePlusPlus()),
    "rae": Method(make=lambda game: RAE()),
    "gae": Method(make=lambda game: GAE(critic=TabularCritic())),
    "turn": Method(make=lambda game: MTGRPO(group_by="agent")),
    "gigpo": Method(make=lambda game: GiGPO(group_by="agent")),
    "advantage_alignment": Method(make=lambda game: AdvantageAlignment()),
    "dr_grpo, branch": Method(
        make=lambda game: DrGRPO(group_by="agent"), refuses=SHORT, sampler=branches, completions=12
    ),
    "arpo, branch": Method(
        make=lambda game: ARPO(group_by="agent"), refuses=SHORT, sampler=branches, completions=12
    ),
    "agent_turn, tree": Method(
        make=lambda game: ATGRPO(), refuses=SHORT, sampler=tree, completions=12
    ),
    "magrpo": Method(make=lambda game: MAGRPO(), team=True, refuses=CONSTANT),
    "team": Method(make=lambda game: TeamGRPO(), team=True, refuses=CONSTANT),
    "counterfactual": Method(
        make=lambda game: Counterfactual(arena=lambda: GameArena(game), default="0"),
        team=True,
        refuses=CONSTANT,
    ),
}
"""Methods with the settings of `configs/credit/`, but agents are compared with themselves
(`group_by="agent"`), and the critic of `gae` is a table."""
