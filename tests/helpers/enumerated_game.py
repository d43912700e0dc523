"""Enumerated games, with the expected gradients of credit methods and the exact policy gradient.

Two agents move at once, in one or two rounds. Their policies are tabular softmax policies in
float64. An agent sees the round and the moves of the round before. The second round may depend on
the first.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import torch

from selfplay.credit import Credit
from selfplay.types import Episode
from tests.helpers.builders import episode, group, turn

Joint = tuple[int, int]
History = tuple[Joint, ...]
AGENTS = ("left_0", "right_0")


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game: `pay(history)` has the rewards of its last round; `over(history)` ends it."""

    actions: int
    pay: Callable[[History], tuple[float, float]]
    over: Callable[[History], bool]
    names: tuple[str, str] = AGENTS

    def histories(self, played: History = ()) -> list[History]:
        """Return all complete plays that begin with `played`."""
        if played and self.over(played):
            return [played]
        moves = product(range(self.actions), repeat=2)
        return [end for a, b in moves for end in self.histories((*played, (a, b)))]

    def table(self, seed: int) -> torch.Tensor:
        """Return [agent, state, action] logits. A state is the last joint action, or the start."""
        generator = torch.Generator().manual_seed(seed)
        shape = (2, self.actions**2 + 1, self.actions)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def state(self, history: History, round_number: int) -> int:
        if round_number == 0:
            return self.actions**2
        a, b = history[round_number - 1]
        return a * self.actions + b

    def logprob(self, logits: torch.Tensor, history: History) -> torch.Tensor:
        """Return the log-probability of the moves of both agents."""
        chosen = logits.log_softmax(-1)
        return torch.stack(
            [
                chosen[agent, self.state(history, number), joint[agent]]
                for number, joint in enumerate(history)
                for agent in (0, 1)
            ]
        ).sum()

    def rewards(self, history: History) -> list[tuple[float, float]]:
        return [self.pay(history[: number + 1]) for number in range(len(history))]

    def exact(self, logits: torch.Tensor, *, team: bool = False) -> np.ndarray:
        """Return each agent's gradient of its expected return, or with `team` of the mean one."""
        logits = logits.clone().requires_grad_()
        rows = []
        for agent in (0, 1):
            value = torch.zeros((), dtype=torch.float64)
            for history in self.histories():
                paid = np.array(self.rewards(history)).sum(0)
                judged = paid.mean() if team else paid[agent]
                value = value + self.logprob(logits, history).exp() * float(judged)
            (gradient,) = torch.autograd.grad(value, logits)
            rows.append(gradient[agent].numpy())
        return np.stack(rows)

    def visits(self, logits: torch.Tensor) -> np.ndarray:
        """Return the [state] probabilities that a play reaches a state."""
        found = np.zeros(self.actions**2 + 1)
        for history in self.histories():
            chance = float(self.logprob(logits, history).exp())
            for number in range(len(history)):
                found[self.state(history, number)] += chance
        return found

    def values(self, logits: torch.Tensor) -> np.ndarray:
        """Return the [agent, state] expected returns from a state on."""
        found = np.zeros((2, self.actions**2 + 1))
        for history in self.histories():
            chance = float(self.logprob(logits, history).exp())
            paid = np.array(self.rewards(history))
            for number in range(len(history)):
                found[:, self.state(history, number)] += chance * paid[number:].sum(0)
        return found / np.maximum(self.visits(logits), 1e-300)

    def played(self, history: History) -> Episode:
        turns = [
            turn(
                self.names[agent],
                paid[agent],
                prompt_ids=(self.state(history, number), agent),
                completion_ids=(joint[agent],),
                action=str(joint[agent]),
                stage=number,
            )
            for number, (joint, paid) in enumerate(zip(history, self.rewards(history), strict=True))
            for agent in (0, 1)
        ]
        return episode(*turns)

    def expected(self, credit: Credit, logits: torch.Tensor, *, size: int) -> np.ndarray:
        """Return E[1/G sum A grad log pi] over all groups of `size`, each with fresh credit."""
        chances = logits.softmax(-1).numpy()
        plays = [
            (float(self.logprob(logits, history).exp()), self.played(history))
            for history in self.histories()
        ]
        found = np.zeros_like(chances)
        for drawn in product(plays, repeat=size):
            samples = deepcopy(credit).assign([group(*(one for _, one in drawn))])
            chance = prod(p for p, _ in drawn)
            for sample in samples:
                agent = self.names.index(sample.turn.agent)
                state, action = sample.turn.prompt_ids[0], sample.turn.completion_ids[0]
                score = -chances[agent, state]
                score[action] += 1
                assert isinstance(sample.advantage, float)
                found[agent, state] += chance * sample.advantage / size * score
        return found


def one_round(pay: Sequence[Sequence[tuple[float, float]]], **fields: tuple[str, str]) -> Game:
    """Return a matrix game. `pay[a][b]` has the rewards of both agents."""
    return Game(
        actions=len(pay),
        pay=lambda history: pay[history[-1][0]][history[-1][1]],
        over=lambda history: True,
        **fields,
    )


MIXED = one_round(
    [
        [(1.0, 0.0), (0.0, 2.0), (-1.0, 0.5)],
        [(0.5, 0.5), (3.0, -1.0), (0.0, 0.0)],
        [(2.0, 1.0), (-0.5, 0.0), (1.0, 1.0)],
    ]
)
"""Game of one round and three actions. Rewards have both signs and are not shared or opposed."""

TWO_ROUNDS = Game(
    actions=2,
    pay=lambda h: (float(h[-1][0] + 2 * h[0][1] - len(h)), float(h[0][0] * h[-1][1]) - 0.25),
    over=lambda h: len(h) == 2,
)
"""Game of two rounds. The rewards of the second round depend on the first round."""

EARLY_END = Game(
    actions=2,
    pay=lambda h: (float(1 + h[-1][0]) * len(h), float(h[-1][1]) - 0.5 * len(h)),
    over=lambda h: len(h) == 2 or h[0] == (1, 1),
)
"""Game that ends after one round if both play 1, so that episodes differ in length."""


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Return the cosine of the angle between two gradients: 1 if their directions are equal."""
    return float((first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second))
