"""Shaping: what a turn is paid, changed by facts that no arena knows, such as its length in tokens.

Curricula and samplers see the rewards that the arena paid; credit, records and figures the shaped
ones. A turn keeps what it was paid in `info["unshaped_reward"]`.

Repetition: a proposal is paid less, the more of the batch says nearly the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import combinations
from typing import Protocol

from selfplay.rewards import cosine_length, overlong
from selfplay.types import Group, StopReason, Turn


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """R-Zero's repetition penalty (2508.05004): r - weight * |C| / B, at least `floor`.

    C is the cluster that a role's action falls into among all B turns of that role in the step, by
    average linkage of the distances 1 - BLEU (smoothing method 1). The released code has no floor.
    An action that did not parse is in no cluster and keeps its pay, but counts in B. Equal actions
    have distance 0. The cost is one BLEU for every pair of different actions: a second for 150.
    Failure mode: BLEU sees words, so the same question with other numbers may be no repetition, and
    a batch of one is wholly one cluster. Needs selfplay[repetition].
    """

    role: str
    """Whose actions are compared."""
    distance: float = 0.5
    """Where clusters are cut, from 0 (equal) to 1 (nothing in common)."""
    weight: float = 1.0
    """What a batch that is all alike costs."""
    floor: float | None = 0.0
    """The least pay of an action that parsed; None: no such bound, as in the released code."""

    def __post_init__(self) -> None:
        if not 0 <= self.distance <= 1:
            raise ValueError(f"distance lies in [0, 1], not {self.distance}")
        for package in ("nltk", "scipy"):
            if find_spec(package) is None:
                raise ValueError(f"no package {package!r}; pip install 'selfplay[repetition]'")

    def rewards(self, turns: Sequence[Turn]) -> list[float]:
        """The rewards less the penalty."""
        among = [place for place, turn in enumerate(turns) if turn.role == self.role]
        said = {place: turns[place].action for place in among}
        parsed = {place: action for place, action in said.items() if action is not None}
        cluster = clusters(list(dict.fromkeys(parsed.values())), distance=self.distance)
        sizes = Counter(cluster[action] for action in parsed.values())
        found = [turn.reward for turn in turns]
        for place, action in parsed.items():
            found[place] -= self.weight * sizes[cluster[action]] / len(among)
            if self.floor is not None:
                found[place] = max(self.floor, found[place])
        return found


def clusters(texts: Sequence[str], *, distance: float) -> dict[str, int]:
    """Different texts to the number of their cluster."""
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


class Shaper(Protocol):
    """One reason to pay turns otherwise."""

    def rewards(self, turns: Sequence[Turn]) -> Sequence[float]:
        """The new rewards of all turns of a step, in their order."""
        ...


class EachTurn:
    """A shaper that judges every turn by itself."""

    def reward(self, turn: Turn) -> float:
        """The turn's new reward."""
        raise NotImplementedError(f"{type(self).__name__}.reward")

    def rewards(self, turns: Sequence[Turn]) -> list[float]:
        """The new rewards, one by one."""
        return [self.reward(turn) for turn in turns]


@dataclass(frozen=True, kw_only=True)
class Overlong(EachTurn):
    """Adds DAPO's soft penalty for completions near the token limit (2503.14476)."""

    limit: int
    """Tokens at which the penalty is whole."""
    buffer: int
    """Tokens below the limit at which it begins."""
    weight: float = 1.0
    """What the whole penalty costs."""

    def __post_init__(self) -> None:
        overlong(0, limit=self.limit, buffer=self.buffer)

    def reward(self, turn: Turn) -> float:
        """The reward less the penalty."""
        length = len(turn.completion_ids)
        return turn.reward + self.weight * overlong(length, limit=self.limit, buffer=self.buffer)


@dataclass(frozen=True, kw_only=True)
class CosineLength(EachTurn):
    """Replaces the reward by one that depends on correctness and length (2502.03373).

    For arenas that pay an answer at the turn that gives it; a turn whose pay comes later or is
    shared is judged by that pay.
    """

    limit: int
    """Tokens at which a completion counts as longest."""
    threshold: float = 0.0
    """A turn that was paid more than this is right."""
    right: tuple[float, float] = (2.0, 1.0)
    """Pay of a right answer with no tokens, and at the limit."""
    wrong: tuple[float, float] = (-10.0, 0.0)
    """Pay of a wrong one."""
    cut_off: float = -10.0
    """Pay of a completion that the token limit ended."""

    def reward(self, turn: Turn) -> float:
        """The reward of its kind and length."""
        if turn.stop_reason is StopReason.LENGTH:
            return self.cut_off
        short, long = self.right if turn.reward > self.threshold else self.wrong
        return cosine_length(len(turn.completion_ids), limit=self.limit, short=short, long=long)


class Shaping:
    """All shapers of a run, one after the other, on the turns that are learned from."""

    def __init__(self, shapers: Sequence[Shaper] = ()) -> None:
        self.shapers = tuple(shapers)

    def apply(self, *lists: Sequence[Group]) -> tuple[list[Group], ...]:
        """The groups with shaped rewards; what several lists share is shared afterwards too."""
        if not self.shapers:
            return tuple(list(groups) for groups in lists)
        every = (e for groups in lists for group in groups for e in group.episodes)
        found = {id(turn): turn for e in every for turn in e.turns if turn.trainable}
        turns = list(found.values())
        for shaper in self.shapers:
            rewards = shaper.rewards(turns)
            turns = [replace(t, reward=r) for t, r in zip(turns, rewards, strict=True)]
        paid = {
            place: replace(new, info={**new.info, "unshaped_reward": found[place].reward})
            for place, new in zip(found, turns, strict=True)
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
