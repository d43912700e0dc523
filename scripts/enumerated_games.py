"""Games of two agents that are small enough to enumerate.

Both agents move at once in each round, by tabular softmax policies in float64. An agent sees the
joint move of the round before. All complete plays are known, and so are the exact expected returns
and policy gradients. `tabular_bakeoff.py` uses this file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from selfplay.arena import Arena
from selfplay.curriculum.fixed import FixedTasks
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.types import Action, Episode, Group, Observation, Status, Task, Turn

Joint = tuple[int, int]
History = tuple[Joint, ...]
AGENTS = ("left_0", "right_0")
TASK = Task(id="game")


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game of a fixed number of rounds.

    `pay(history)` returns the rewards of both agents in the latest round.
    """

    name: str
    about: str
    pay: Callable[[History], tuple[float, float]]
    actions: int = 2
    rounds: int = 1

    @cached_property
    def plays(self) -> list[History]:
        """All complete plays."""
        moves = range(self.actions)
        joint: list[Joint] = [(left, right) for left in moves for right in moves]
        return list(product(joint, repeat=self.rounds))

    @cached_property
    def decisions(self) -> np.ndarray:
        """[play, round, agent, 2] the state of each decision, and its action."""
        rows = [
            [[(self.state(play, stage), joint[agent]) for agent in (0, 1)] for stage, joint in
             enumerate(play)]
            for play in self.plays
        ]  # fmt: skip
        return np.array(rows)

    @cached_property
    def returns(self) -> np.ndarray:
        """[play, agent] sums of rewards."""
        return np.array([np.sum(self.rewards(play), axis=0) for play in self.plays])

    @cached_property
    def episodes(self) -> list[Episode]:
        """The record of each play."""
        return [self._record(play) for play in self.plays]

    def state(self, play: History, stage: int) -> int:
        """Return the number of the state that both agents see in a round: the last joint move."""
        if stage == 0:
            return self.actions**2
        left, right = play[stage - 1]
        return left * self.actions + right

    def rewards(self, play: History) -> list[tuple[float, float]]:
        """Return the rewards of both agents in each round."""
        return [self.pay(play[: stage + 1]) for stage in range(len(play))]

    def logits(self, seed: int, *, scale: float = 1.0) -> np.ndarray:
        """Return [agent, state, action] logits, normal with this standard deviation."""
        shape = (2, self.actions**2 + 1, self.actions)
        return scale * np.random.default_rng(seed).standard_normal(shape)

    def chances(self, logits: np.ndarray) -> np.ndarray:
        """Return [play] the probability of each play."""
        policy, found = softmax(logits), np.ones(len(self.plays))
        for stage in range(self.rounds):
            for agent in (0, 1):
                states, actions = self.decisions[:, stage, agent].T
                found *= policy[agent, states, actions]
        return found

    def value(self, logits: np.ndarray, *, team: bool = True) -> Any:
        """Return the expected mean return of both agents, or [agent] that of each."""
        each = self.chances(logits) @ self.returns
        return float(each.mean()) if team else each

    def exact(self, logits: np.ndarray, *, team: bool) -> np.ndarray:
        """Return the exact gradient of each agent's own, or the team's mean, expected return."""
        worth = self.returns.mean(1, keepdims=True) if team else self.returns
        weights = self.chances(logits)[:, None] * np.broadcast_to(worth, (len(self.plays), 2))
        counted = np.zeros_like(logits)
        for stage in range(self.rounds):
            for agent in (0, 1):
                states, actions = self.decisions[:, stage, agent].T
                np.add.at(counted[agent], (states, actions), weights[:, agent])
        return scores(counted, logits)

    def _record(self, play: History) -> Episode:
        turns = [
            Turn(
                agent=AGENTS[agent],
                role=AGENTS[agent][:-2],
                policy=AGENTS[agent],
                version=0,
                prompt_ids=(self.state(play, stage), agent),
                completion_ids=(joint[agent],),
                logprobs=(-1.0,),
                loss_mask=(1,),
                action=str(joint[agent]),
                reward=paid[agent],
                stage=stage,
            )
            for stage, (joint, paid) in enumerate(zip(play, self.rewards(play), strict=True))
            for agent in (0, 1)
        ]
        return Episode(
            arena=self.name, task=TASK, seed=0, turns=tuple(turns), status=Status.FINISHED
        )


class GameArena(Arena):
    """An arena of a game, for methods that replay episodes; a missing action counts as 0."""

    name = "enumerated_v0"
    roles = {"left": 1, "right": 1}

    def __init__(self, game: Game) -> None:
        super().__init__()
        self.game = game

    def setup(self, task: Task, rng: Any) -> None:
        self.played: History = ()

    def acting(self) -> Sequence[str]:
        return AGENTS

    def view(self, agent: str) -> Observation:
        return Observation(text=str(self.game.state(self.played, len(self.played))))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        left, right = (int(actions[name] or 0) for name in AGENTS)
        self.played = (*self.played, (left, right))
        for name, reward in zip(AGENTS, self.game.pay(self.played), strict=True):
            self.pay(name, reward)
        if len(self.played) == self.game.rounds:
            self.finish()


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities over the last axis."""
    found = np.exp(logits - logits.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


def scores(weights: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return the gradient of the sum of weights * log pi; all are [agent, state, action]."""
    return weights - softmax(logits) * weights.sum(-1, keepdims=True)


class Player:
    """A function that plays episodes of a game for samplers, with the policy `logits`."""

    def __init__(self, game: Game, rng: np.random.Generator) -> None:
        self.game, self.rng = game, rng
        self.logits = game.logits(0)
        self.completions = 0

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Return an episode for each spec; one with a prefix goes on from it."""
        chances = self.game.chances(self.logits)
        return [self._one(spec, chances) for spec in specs]

    def sample(self, sampler: Any, *, groups: int, step: int) -> list[Group]:
        """Return the groups of one step."""
        curriculum = FixedTasks(tasks=[TASK], batch=groups)
        found: list[Group] = sampler.sample(curriculum, self, step=step, seed=0)
        return found

    def _one(self, spec: EpisodeSpec, chances: np.ndarray) -> Episode:
        shared = len(spec.prefix_turns)
        self.completions += 2 * self.game.rounds - shared
        if shared:
            start = [int(turn.action or 0) for turn in spec.prefix_turns]
            moves = self.game.decisions[:, :, :, 1].reshape(len(chances), -1)[:, :shared]
            chances = chances * (moves == start).all(1)
        ends = chances.cumsum()
        play = int(np.searchsorted(ends, self.rng.random() * ends[-1], side="right"))
        episode = self.game.episodes[min(play, len(ends) - 1)]
        if spec.branch_of is None:
            return episode
        return replace(episode, branch_of=spec.branch_of, shared_turns=shared)


def _hunt(history: History) -> tuple[float, float]:
    left, right = history[-1]
    if left == right == 1:
        return 4.0, 4.0
    return (0.0 if left else 1.75), (0.0 if right else 1.75)


def _relay(history: History) -> tuple[float, float]:
    right = float(history in (((2, 0), (0, 2)), ((0, 1), (1, 0))))
    return right, right


def _steps(history: History) -> tuple[float, float]:
    left, right = history[-1]
    if len(history) == 1:
        return float(left < right), float(left < right)
    moved = float(left == (history[0][0] + 1) % 3 and right == (history[0][1] + 2) % 3)
    return moved, moved


def _dilemma(history: History) -> tuple[float, float]:
    left, right = history[-1]
    return 2.0 * right - left + 1.0, 2.0 * left - right + 1.0


def _pennies(history: History) -> tuple[float, float]:
    left, right = history[-1]
    won = (2.0 if left else 1.0) if left == right else -1.0
    return won, -won


GAMES: Mapping[str, Game] = {
    game.name: game
    for game in (
        Game(name="hunt", about="stag hunt, own rewards, one round", pay=_hunt),
        Game(name="relay", about="team, two rounds, 0 or 1 at the end", pay=_relay, rounds=2,
             actions=3),
        Game(name="steps", about="team, two rounds, a reward in each", pay=_steps, rounds=2,
             actions=3),
        Game(name="dilemma", about="prisoner's dilemma, own rewards, 2 rounds", pay=_dilemma,
             rounds=2),
        Game(name="pennies", about="matching pennies with unequal prizes, zero sum",
             pay=_pennies),
    )
}  # fmt: skip
