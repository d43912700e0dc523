"""Repetition: a proposal is paid less, the more of the batch says nearly the same."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations

from selfplay.types import Turn


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
