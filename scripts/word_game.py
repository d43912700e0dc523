"""A game of words that can be enumerated, for comparisons of objectives and of length penalties.

A policy gets a task and writes a word of an alphabet, token by token. It may end the word, and a
word that reaches the longest length without an end is cut off. Each task has a target. The reward
is 1 for the target; for any other word, also for one that is cut off, it is half of the fraction of
the target's letters with which the word begins. The policy is a table of logits by task and by
letters so far, so that expected values are computed from all words. `stale_bakeoff.py` and
`dapo_bakeoff.py` use this file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfplay.learner.objective import BatchCounts, LossInputs, PolicyLoss
from selfplay.types import Sample, StopReason, Turn


@dataclass(frozen=True, kw_only=True)
class WordGame:
    """An alphabet, the length of the longest word, and a target for each task."""

    letters: int
    """Size of the alphabet; the token of this number ends a word."""
    longest: int
    """Largest number of tokens of a word."""
    targets: Sequence[tuple[int, ...]]
    """Target of each task."""

    @property
    def nodes(self) -> int:
        """Return the number of beginnings of words that one more token can follow."""
        return sum(self.letters**depth for depth in range(self.longest))

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the policy's table: states and tokens."""
        return len(self.targets) * self.nodes, self.letters + 1

    def reward(self, task: int, word: Sequence[int]) -> float:
        """Return the reward of a word, a sequence of tokens that may close with the end token."""
        target = self.targets[task]
        letters = tuple(token for token in word if token < self.letters)
        if self.ended(word) and letters == target:
            return 1.0
        right = 0
        while right < min(len(letters), len(target)) and letters[right] == target[right]:
            right += 1
        return 0.5 * right / len(target)

    def ended(self, word: Sequence[int]) -> bool:
        """Return True if a word closes with the end token, and False if it was cut off."""
        return bool(word) and word[-1] == self.letters

    def states(self, task: int, word: Sequence[int]) -> list[int]:
        """Return the rows of the table in which the tokens of a word are chosen."""
        node, found = 0, []
        for token in word:
            found.append(task * self.nodes + node)
            node = node * self.letters + token + 1
        return found

    def words(self) -> list[tuple[int, ...]]:
        """Return all words of a task."""
        found: list[tuple[int, ...]] = []
        begun: list[tuple[int, ...]] = [()]
        while begun:
            word = begun.pop()
            found.append((*word, self.letters))
            longer = [(*word, letter) for letter in range(self.letters)]
            (begun if len(word) + 1 < self.longest else found).extend(longer)
        return found

    def sampled(self, logits: Tensor, tasks: Sequence[int], rng: np.random.Generator) -> list[Turn]:
        """Return a word for each task, drawn by the policy with these logits."""
        nats = logits.log_softmax(-1).numpy()
        sums = np.exp(nats).cumsum(-1)
        return [
            self._word(task, draws, nats, sums)
            for task, draws in zip(tasks, rng.random((len(tasks), self.longest)), strict=True)
        ]

    def _word(self, task: int, draws: np.ndarray, nats: np.ndarray, sums: np.ndarray) -> Turn:
        node, tokens, logprobs = 0, list[int](), list[float]()
        for draw in draws:
            state = task * self.nodes + node
            token = min(int((sums[state] < draw).sum()), self.letters)
            tokens.append(token)
            logprobs.append(float(nats[state, token]))
            if token == self.letters:
                break
            node = node * self.letters + token + 1
        return Turn(
            agent="player_0",
            role="player",
            policy="base",
            version=0,
            prompt_ids=(task,),
            completion_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            loss_mask=(1,) * len(tokens),
            action="",
            reward=self.reward(task, tokens),
            stop_reason=StopReason.STOP if self.ended(tokens) else StopReason.LENGTH,
        )


@dataclass
class Leaves:
    """All words of all tasks, so that an expected value is one product of matrices."""

    game: WordGame
    """The game of the words."""
    states: Tensor = field(init=False)
    """[W, longest] rows of the table, 0 where the word has ended."""
    tokens: Tensor = field(init=False)
    """[W, longest] tokens."""
    mask: Tensor = field(init=False)
    """[W, longest] 1.0 on the tokens of the word."""
    pay: Tensor = field(init=False)
    """[W] rewards."""
    cut: Tensor = field(init=False)
    """[W] 1.0 for words that are cut off."""

    def __post_init__(self) -> None:
        game = self.game
        words = [(task, word) for task in range(len(game.targets)) for word in game.words()]
        self.states, self.tokens, self.mask = padded(game, words)
        rewards = [game.reward(task, word) for task, word in words]
        self.pay = torch.tensor(rewards, dtype=torch.float64)
        cut = [float(not game.ended(word)) for _, word in words]
        self.cut = torch.tensor(cut, dtype=torch.float64)

    def chances(self, logits: Tensor) -> Tensor:
        """Return [W] the probability of each word, which sum to 1; carries the gradient."""
        nats = (read(logits, self.states, self.tokens) * self.mask).sum(1)
        return nats.exp() / len(self.game.targets)

    def expected(self, logits: Tensor) -> Tensor:
        """Return the exact expected return, the mean over tasks; carries the gradient."""
        return (self.chances(logits) * self.pay).sum()


def padded(
    game: WordGame, words: Sequence[tuple[int, Sequence[int]]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return [B, longest] states, tokens and mask of words given as task and tokens."""
    states = [filled(game, game.states(task, word)) for task, word in words]
    tokens = [filled(game, list(word)) for _, word in words]
    mask = [filled(game, [1.0] * len(word)) for _, word in words]
    return torch.tensor(states), torch.tensor(tokens), torch.tensor(mask, dtype=torch.float64)


def filled(game: WordGame, values: list[Any]) -> list[Any]:
    """Return the values of a word's tokens, with zeros up to the longest word."""
    return values + [0] * (game.longest - len(values))


def read(logits: Tensor, states: Tensor, tokens: Tensor) -> Tensor:
    """Return [B, longest] nats of tokens in states."""
    return logits.log_softmax(-1)[states, tokens]


def gradient(
    game: WordGame, objective: PolicyLoss, logits: Tensor, given: Sequence[Sample]
) -> tuple[Tensor, float]:
    """Return the direction in which the objective grows, and the fraction of bounded tokens."""
    turns = [sample.turn for sample in given]
    states, tokens, mask = padded(
        game, [(turn.prompt_ids[0], turn.completion_ids) for turn in turns]
    )
    table = logits.clone().requires_grad_(True)
    now = read(table, states, tokens)
    position = {id(turn): row for row, turn in enumerate(turns)}

    def score(samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        rows = [position[id(sample.turn)] for sample in samples]
        return [now.detach()[row][mask[row] > 0].tolist() for row in rows]

    prepared, _ = objective.prepare(given, score)
    by_token = [
        each.advantage
        if isinstance(each.advantage, tuple)
        else (each.advantage,) * len(each.turn.completion_ids)
        for each in prepared
    ]
    advantages = torch.tensor([filled(game, list(each)) for each in by_token], dtype=torch.float64)
    old = torch.tensor([filled(game, list(turn.logprobs)) for turn in turns], dtype=torch.float64)
    totals = BatchCounts(tokens=int(mask.sum()), sequences=len(turns))
    inputs = LossInputs(logprobs=now, old_logprobs=old, advantages=advantages, mask=mask)
    loss, sums = objective.loss(inputs, totals)
    loss.backward()
    assert table.grad is not None
    return -table.grad, sums.get("clipped", 0.0) / totals.tokens
