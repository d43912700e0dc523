"""The enumerated games as arenas, and all trees that sampling can draw from them."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import TypeVar

import numpy as np
import torch

from selfplay.arena import Arena
from selfplay.credit import Credit
from selfplay.types import Action, Episode, Group, Observation, Task, role_of
from tests.helpers.builders import group
from tests.helpers.enumerated_game import Game, History

Value = TypeVar("Value")


class GameArena(Arena):
    """An arena that plays a `Game`: an action is a number, and a missing action counts as 0."""

    name = "enumerated_v0"

    def __init__(self, game: Game) -> None:
        super().__init__({role_of(name): 1 for name in game.names})
        self.game = game

    def setup(self, task: Task, rng: random.Random) -> None:
        self.played: History = ()

    def acting(self) -> Sequence[str]:
        return self.game.names

    def view(self, agent: str) -> Observation:
        return Observation(text=str(self.game.state(self.played, len(self.played))))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        left, right = (int(actions[name] or 0) for name in self.game.names)
        self.played = (*self.played, (left, right))
        for name, reward in zip(self.game.names, self.game.pay(self.played), strict=True):
            self.pay(name, reward)
        if self.game.over(self.played):
            self.finish()


def arena_of(game: Game) -> Callable[[], Arena]:
    """Return a function that makes arenas of the game."""
    return lambda: GameArena(game)


def groups_of(game: Game, logits: torch.Tensor, *, size: int) -> Iterator[tuple[float, Group]]:
    """Yield (probability, group) for all groups of independent plays."""
    plays = [(chance(game, logits, each), game.played(each)) for each in game.histories()]
    for drawn in product(plays, repeat=size):
        yield float(np.prod([p for p, _ in drawn])), group(*(one for _, one in drawn))


def chance(game: Game, logits: torch.Tensor, history: History) -> float:
    return float(game.logprob(logits, history).exp())


def gradient(game: Game, logits: torch.Tensor, credit: Credit, one: Group) -> np.ndarray:
    """Return 1/G sum A grad log pi of one group, with G the joint moves of a turn's stage."""
    chances = logits.softmax(-1).numpy()
    samples = credit.assign([one])
    stages = [sample.turn.stage for sample in samples]
    found = np.zeros_like(chances)
    for sample in samples:
        agent = game.names.index(sample.turn.agent)
        state, action = sample.turn.prompt_ids[0], sample.turn.completion_ids[0]
        score = -chances[agent, state]
        score[action] += 1
        assert isinstance(sample.advantage, float)
        moves = stages.count(sample.turn.stage) / len(game.names)
        found[agent, state] += sample.advantage / moves * score
    return found


def trees(game: Game, logits: torch.Tensor) -> Iterator[tuple[float, Group]]:
    """Yield (probability, tree) for all trees of two stages with two candidates at each node."""
    moves = [(a, b) for a in range(game.actions) for b in range(game.actions)]
    after = {first: [h for h in game.histories() if h[0] == first] for first in moves}
    chances = {h: chance(game, logits, h) for h in game.histories()}
    for firsts, count in pairs(moves):
        for one, of_one in pairs(after[firsts[0]]):
            for two, of_two in pairs(after[firsts[1]]):
                weight = float(np.prod([chances[h] for h in (*one, *two)]))
                weight /= float(np.prod([sum(chances[h] for h in after[m]) for m in firsts]))
                leaves = [game.played(h) for h in (one[0], two[0], one[1], two[1])]
                leaves[2:] = [branched(leaves[2], 0, stem=2), branched(leaves[3], 1, stem=2)]
                yield count * of_one * of_two * weight, group(*leaves)


def pairs(values: Sequence[Value]) -> Iterator[tuple[tuple[Value, Value], int]]:
    """Yield each unordered pair of candidates, and the number of orders that give this pair."""
    for pair in combinations_with_replacement(values, 2):
        yield pair, 1 + (pair[0] != pair[1])


def branched(episode: Episode, parent: int, *, stem: int) -> Episode:
    """Return the episode as a branch of a sibling."""
    return replace(episode, branch_of=parent, shared_turns=stem)
