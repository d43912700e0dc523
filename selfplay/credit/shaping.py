"""Reward shaping: changes the pay of turns by facts that arenas do not know, such as token counts
and repetition within a batch.

Curricula and samplers see the arena's rewards; credit, records and metrics see the shaped ones. A
turn keeps its reward before shaping in `info["unshaped_reward"]`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import cos, pi
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from selfplay.author_code import naming
from selfplay.credit.assigned import is_number
from selfplay.credit.rewards import cosine_length, overlong
from selfplay.credit.tree import path
from selfplay.errors import ConfigError, require_package
from selfplay.types import Episode, Group, StopReason, Turn

UNSHAPED = "unshaped_reward"
"""Name in a turn's `info` of its reward before shaping."""


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """R-Zero's repetition penalty (2508.05004): r - weight * |C| / B, at least `floor`.

    C is the cluster of a role's action among all B turns of that role in the step, by average
    linkage of the distances 1 - BLEU (smoothing method 1). The released code has no floor. An
    action that did not parse is in no cluster and keeps its reward, but counts in B. Turns that
    call tools have no action and do not count. A turn that branches share counts once, even if
    they give it different rewards. Equal actions have distance 0. The cost is one BLEU for every
    pair of different actions: one second for 150 actions. Failure mode: BLEU compares words, so the
    same question with other numbers may not count as a repetition, and a batch of one is a single
    cluster. Needs selfplay[repetition].
    """

    role: str
    """Name of the role whose actions are compared."""
    distance: float = 0.5
    """Distance at which clusters are cut, from 0 (equal) to 1 (nothing in common)."""
    weight: float = 1.0
    """Penalty of a batch in which all actions are alike, in reward."""
    floor: float | None = 0.0
    """Smallest reward of an action that parsed; None for no such bound, as in the released code."""

    def __post_init__(self) -> None:
        if not 0 <= self.distance <= 1:
            raise ValueError(f"distance lies in [0, 1], not {self.distance}")
        for package in ("nltk", "scipy"):
            require_package(package, "repetition", error=ValueError)

    def of_step(self, turns: Sequence[Turn], places: Sequence[Hashable]) -> list[float]:
        """Return the rewards minus the penalty."""
        among = [index for index, turn in enumerate(turns) if turn.role == self.role and turn.final]
        sampled = {places[index]: turns[index].action for index in among}
        parsed = [action for action in sampled.values() if action is not None]
        cluster = clusters(list(dict.fromkeys(parsed)), distance=self.distance)
        sizes = Counter(cluster[action] for action in parsed)
        rewards = [turn.reward for turn in turns]
        for index in among:
            action = turns[index].action
            if action is None:
                continue
            rewards[index] -= self.weight * sizes[cluster[action]] / len(sampled)
            if self.floor is not None:
                rewards[index] = max(self.floor, rewards[index])
        return rewards


def clusters(texts: Sequence[str], *, distance: float) -> dict[str, int]:
    """Return the number of the cluster of each different text."""
    if len(texts) < 2:
        return dict.fromkeys(texts, 1)
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    from scipy.cluster.hierarchy import fcluster, linkage

    smoothing = SmoothingFunction().method1
    words = [text.split() for text in texts]
    distances = [
        1 - sentence_bleu([second], first, smoothing_function=smoothing)
        for first, second in combinations(words, 2)
    ]
    tree = linkage(distances, method="average")
    return dict(zip(texts, map(int, fcluster(tree, distance, criterion="distance")), strict=True))


@runtime_checkable
class Shaper(Protocol):
    """A rule that changes the rewards of turns. The config lists them; `Shaping` applies them."""

    def rewards(self, turns: Sequence[Turn]) -> Sequence[float]:
        """Return the new rewards of all turns of a step, in their order."""
        ...


@runtime_checkable
class EpisodeShaper(Protocol):
    """A rule that needs whole episodes, such as `selfplay.credit.potential.PotentialBased`."""

    def of_episode(self, episode: Episode) -> Sequence[float]:
        """Return the new rewards of all turns of an episode, in their order."""
        ...


@runtime_checkable
class StepShaper(Protocol):
    """A rule that compares the turns of a step, such as `Repetition`."""

    def of_step(self, turns: Sequence[Turn], places: Sequence[Hashable]) -> Sequence[float]:
        """Return the new rewards of all turns of a step, in their order.

        Args:
            turns: The turns. If branches pay a turn differently, each of them has a turn here.
            places: Key of each turn in the tree of its group: equal for what was sampled once.
        """
        ...


class EachTurn:
    """Base class of shapers that judge every turn by itself."""

    def reward(self, turn: Turn) -> float:
        """Return the turn's new reward."""
        raise ConfigError(f"shaping: {type(self).__name__} has no method reward; write it")

    def rewards(self, turns: Sequence[Turn]) -> list[float]:
        """Return the new rewards, one by one."""
        return [self.reward(turn) for turn in turns]


@dataclass(frozen=True, kw_only=True)
class Overlong(EachTurn):
    """Adds DAPO's soft penalty for completions near the token limit (2503.14476)."""

    limit: int
    """Number of tokens from which on the penalty is full."""
    buffer: int
    """Number of tokens below the limit over which the penalty grows from 0."""
    weight: float = 1.0
    """Size of the full penalty, in reward."""

    def __post_init__(self) -> None:
        overlong(0, limit=self.limit, buffer=self.buffer)

    def reward(self, turn: Turn) -> float:
        """Return the reward minus the penalty."""
        length = len(turn.completion_ids)
        return turn.reward + self.weight * overlong(length, limit=self.limit, buffer=self.buffer)


@dataclass(frozen=True, kw_only=True)
class CosineLength(EachTurn):
    """Replaces the reward by one that depends on correctness and length (2502.03373).

    It is for arenas that pay an answer at the turn of the answer. A turn with delayed or shared pay
    is judged by that pay. A turn that calls a tool is no answer and keeps its reward.
    """

    limit: int
    """Number of tokens at which the reward reaches its value for the longest completions."""
    threshold: float = 0.0
    """A turn is right if its reward is above this value."""
    right: tuple[float, float] = (2.0, 1.0)
    """Reward of a right answer with no tokens, and at the limit."""
    wrong: tuple[float, float] = (-10.0, 0.0)
    """Reward of a wrong answer with no tokens, and at the limit."""
    cut_off: float = -10.0
    """Reward of a completion that reached the token limit."""

    def reward(self, turn: Turn) -> float:
        """Return the reward for the turn's correctness and length."""
        if not turn.final:
            return turn.reward
        if turn.stop_reason is StopReason.LENGTH:
            return self.cut_off
        short, long = self.right if turn.reward > self.threshold else self.wrong
        return cosine_length(len(turn.completion_ids), limit=self.limit, short=short, long=long)


@dataclass(frozen=True, kw_only=True)
class Confidence(EachTurn):
    """Replaces the reward by the mean log-probability of the completion's tokens.

    It estimates the reward of RENT (2505.22660), which is the negative mean entropy of the
    distributions that the tokens were sampled from: the log-probability of a sampled token is an
    unbiased estimate of the negative entropy of its distribution. No label is used. Failure mode: a
    policy becomes sure of the answer that it gives most often, so it learns only where this answer
    is right. Every turn has a term, which is below 0, so methods that sum an agent's rewards favour
    fewer moves and fewer tool calls.
    """

    weight: float = 1.0
    """Factor of the mean log-probability, in reward per nat."""
    no_answer: float = -7.0
    """Mean log-probability that a completion without an action counts as, in nats."""
    keep_reward: bool = False
    """True to add the term to the turn's reward instead of replacing it."""

    def reward(self, turn: Turn) -> float:
        """Return the term, or the sum of reward and term."""
        logprobs = np.asarray(turn.logprobs)
        mean = self.no_answer if turn.invalid or not len(logprobs) else float(logprobs.mean())
        return (turn.reward if self.keep_reward else 0.0) + self.weight * mean


@dataclass(frozen=True, kw_only=True)
class ToolCost(EachTurn):
    """Subtracts the cost of a turn's tool calls, so that policies call a tool only where it pays.

    The cost is paid at the turn that calls; methods that sum an agent's rewards see it in the
    return.
    """

    cost: float
    """Cost of a call, in reward."""

    def reward(self, turn: Turn) -> float:
        """Return the reward minus the cost of the turn's calls."""
        return turn.reward - self.cost * len(turn.tool_calls)


@dataclass(frozen=True, kw_only=True)
class OptimalToolCalls:
    """Multiplies positive rewards by scale * cos(m pi / (2 m + c)) after m tool calls in the move.

    It is the reward of OTC-PPO (2504.14870). A wrong answer is never paid for its few calls. With
    the default c one call halves the reward, and two leave 31 %. OTC-GRPO, which compares m with
    the fewest calls of a right sibling, is not implemented.
    """

    c: float = 1.0
    """Smoothing: the larger, the less a call costs."""
    scale: float = 1.0
    """Factor of all positive rewards (alpha)."""

    def __post_init__(self) -> None:
        if not (self.c > 0 and self.scale > 0):
            raise ValueError("c and scale must be positive")

    def of_episode(self, episode: Episode) -> list[float]:
        """Return the rewards. The calls of a move are the turns of its agent right before it."""
        rewards, calls, agent = [], 0, ""
        for turn in episode.turns:
            calls = len(turn.tool_calls) + (calls if turn.agent == agent else 0)
            agent, paid = turn.agent, turn.reward
            if turn.final:
                if paid > 0:
                    paid *= self.scale * cos(pi * calls / (2 * calls + self.c))
                agent = ""
            rewards.append(paid)
        return rewards


Shapers: TypeAlias = Mapping[str, Shaper | EpisodeShaper | StepShaper]
"""Shapers by their names in the config."""


class Shaping:
    """Applies all shapers of a run, one after the other, to the trainable turns."""

    def __init__(self, shapers: Shapers = MappingProxyType({})) -> None:
        """Args:
        shapers: The shapers by their names in the config, which errors name.
        """
        self.shapers = dict(shapers)
        for name, shaper in self.shapers.items():
            if not isinstance(shaper, Shaper | EpisodeShaper | StepShaper):
                raise ConfigError(
                    f"shaping.{name}: {type(shaper).__name__} has no method rewards; write it, or "
                    "derive the class from selfplay.credit.shaping.EachTurn and write reward"
                )

    def apply(self, *lists: Sequence[Group]) -> tuple[list[Group], ...]:
        """Return the groups with shaped rewards. Turns that several lists share stay shared.

        Raises ConfigError if a turn of several episodes gets different rewards in them, for an
        error of an author's code, and for rewards that are not one finite number per turn.
        """
        if not self.shapers:
            return tuple(list(groups) for groups in lists)
        every = [e for groups in lists for group in groups for e in group.episodes]
        originals = {id(turn): turn for e in every for turn in e.turns if turn.trainable}
        places = _places(lists)
        new = dict(originals)
        for name, shaper in self.shapers.items():
            if isinstance(shaper, EpisodeShaper):
                rewards = _by_episode(name, shaper, every, new)
            else:
                turns = list(new.values())
                method = "of_step" if isinstance(shaper, StepShaper) else "rewards"
                call = f"shaping.{name}: {type(shaper).__name__}.{method}"
                with naming(call, shaper):
                    if isinstance(shaper, StepShaper):
                        found = shaper.of_step(turns, [places[key] for key in new])
                    else:
                        found = shaper.rewards(turns)
                rewards = dict(zip(new, _checked(found, turns, call), strict=True))
            new = {key: replace(turn, reward=rewards[key]) for key, turn in new.items()}
        paid = {
            key: replace(turn, info={**turn.info, UNSHAPED: originals[key].reward})
            for key, turn in new.items()
        }

        def shaped(turn: Turn) -> Turn:
            return paid.get(id(turn), turn)

        return tuple(
            [
                replace(
                    group,
                    episodes=tuple(
                        replace(episode, turns=tuple(map(shaped, episode.turns)))
                        for episode in group.episodes
                    ),
                )
                for group in groups
            ]
            for groups in lists
        )


def _places(lists: Sequence[Sequence[Group]]) -> dict[int, Hashable]:
    """Return the key in the tree of its group for each turn: equal for what was sampled once."""
    return {
        id(turn): (group.id, sibling, place)
        for groups in lists
        for group in groups
        for index, episode in enumerate(group.episodes)
        for place, (turn, sibling) in enumerate(zip(episode.turns, path(group, index), strict=True))
    }


def _checked(rewards: Any, turns: Sequence[Turn], call: str) -> list[float]:
    """Return the rewards of a shaper as numbers; raises ConfigError unless each turn has one."""
    if not isinstance(rewards, Iterable) or isinstance(rewards, str):
        raise ConfigError(f"{call} returned {type(rewards).__name__}, not a list of rewards")
    listed = list(rewards)
    if len(listed) != len(turns):
        raise ConfigError(f"{call} returned {len(listed)} rewards for {len(turns)} turns")
    for turn, reward in zip(turns, listed, strict=True):
        if not is_number(reward):
            raise ConfigError(
                f"{call} gave a turn of {turn.agent} the reward {reward!r}; a reward is a finite "
                "number"
            )
    return list(map(float, listed))


def _by_episode(
    name: str, shaper: EpisodeShaper, episodes: Sequence[Episode], turns: Mapping[int, Turn]
) -> dict[int, float]:
    """Return the rewards of all turns by key; `turns` have the rewards of the earlier shapers."""
    call = f"shaping.{name}: {type(shaper).__name__}.of_episode"
    rewards: dict[int, float] = {}
    for episode in episodes:
        present = tuple(turns.get(id(turn), turn) for turn in episode.turns)
        with naming(call, shaper):
            found = shaper.of_episode(replace(episode, turns=present))
        for turn, reward in zip(episode.turns, _checked(found, present, call), strict=True):
            if id(turn) in turns and rewards.setdefault(id(turn), reward) != reward:
                raise ConfigError(
                    f"shaping.{name}: {type(shaper).__name__} gives a turn that several episodes "
                    "share different rewards; choose a sampler that does not branch"
                )
    return rewards
