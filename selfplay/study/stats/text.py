"""How different texts are from each other, and from earlier ones.

Words are runs of letters and digits, or of operators; of a text the first 200 count. What two texts
share is the Jaccard similarity of their sets of words and of pairs of neighbouring words: a kernel
that is positive semidefinite, as the Vendi score needs it.

Figures of language: diversity at equal size, phrases of self-correction, distance to a base.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import chain
from random import Random

import numpy as np
import torch
from transformers import PreTrainedModel

from selfplay.types import Turn

PHRASES = (
    *("recheck", "rethink", "reassess", "reevaluate", "re-evaluate", "reevaluation"),
    *("re-examine", "reexamine", "reconsider", "reanalyze", "double-check", "check again"),
    *("think again", "verify again", "go over the steps"),
)
"""Those of Liu et al. 2025, 2503.20783; found as substrings of the text in lower case."""


def effective_number(items: Sequence[Hashable]) -> float:
    """exp of the entropy of what kinds there are (Hill number of order 1); NaN of nothing."""
    if not items:
        return math.nan
    chances = np.array(list(Counter(items).values())) / len(items)
    return float(np.exp(-(chances * np.log(chances)).sum()))


def distinct(tokens: Sequence[Hashable], n: int = 2) -> float:
    """Different n-grams among all of them; NaN where there are none."""
    grams = [tuple(tokens[place : place + n]) for place in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else math.nan


def corrections(texts: Sequence[str]) -> tuple[float, float]:
    """(share of texts with a phrase of self-correction, phrases per 1000 words)."""
    hits = [sum(text.lower().count(phrase) for phrase in PHRASES) for text in texts]
    words = sum(len(text.split()) for text in texts)
    share = sum(map(bool, hits)) / len(hits) if hits else math.nan
    return share, 1000 * sum(hits) / words if words else math.nan


def drift(turns: Sequence[Turn], base: Mapping[str, PreTrainedModel]) -> tuple[float, float, float]:
    """(k1, k3, surprisal under the base) in nats per token of what was sampled.

    k1 is the mean of log p - log p0 and k3 that of p0/p - 1 + k1; both are unbiased estimates of
    the KL divergence from the base of the policy at the temperature that it sampled with, and k3 is
    never negative (Schulman 2020). `base` is by policy name.
    """
    mine: list[float] = []
    theirs: list[float] = []
    for turn in turns:
        if turn.completion_ids and turn.policy in base and turn.temperature > 0:
            mine += turn.logprobs
            theirs += logprobs(base[turn.policy], turn)
    if not mine:
        return math.nan, math.nan, math.nan
    difference = np.array(mine) - np.array(theirs)
    ratio = np.exp(np.clip(-difference, -30.0, 30.0))
    return (
        float(difference.mean()),
        float((ratio - 1 + difference).mean()),
        -float(np.mean(theirs)),
    )


def logprobs(model: PreTrainedModel, turn: Turn) -> list[float]:
    """[C] nats of a turn's tokens, at its temperature."""
    ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]], device=model.device)
    with torch.inference_mode():
        logits = model.eval()(input_ids=ids, use_cache=False).logits[0]
    rows = logits[len(turn.prompt_ids) - 1 : -1].double() / turn.temperature
    chosen = torch.tensor(turn.completion_ids, device=model.device)
    found: list[float] = rows.log_softmax(-1).gather(-1, chosen[:, None])[:, 0].tolist()
    return found


MOST_WORDS = 200
ORDER = 4
"""Longest n-grams of self-BLEU."""
ARCHIVE = 64
"""Earlier texts that new ones are compared with; half of all, where these are fewer."""
FIGURES = ("Vendi score", "self-BLEU", "novelty")
"""What `likeness` finds."""

Kinds = Collection[Hashable]


def likeness(
    actions: Mapping[int, Sequence[str]], *, most: int, proposals: bool = False, seed: int = 0
) -> dict[int, dict[str, float]]:
    """By step: the Vendi score and self-BLEU of its first `most` actions, and their novelty where
    they are proposals and there are earlier ones enough. NaN where all actions are one word.

    Steps have equally many actions, in random order.
    """
    if not any(len(words(text)) > 1 for made in actions.values() for text in made):
        return {step: dict.fromkeys(FIGURES, math.nan) for step in actions}
    found = {}
    size = min(ARCHIVE, sum(map(len, actions.values())) // 2)
    earlier: list[str] = []
    for step, made in sorted(actions.items()):
        texts = [shingles(text) for text in made[:most]]
        new = math.nan
        if proposals and len(earlier) >= size:
            archive = Random(f"{seed}-{step}").sample(earlier, size)
            # With a text of no words: what holds no proposal is nothing new.
            new = novelty(texts, [shingles(text) for text in ("", *archive)])
        earlier += made
        alike = self_bleu([words(text)[:MOST_WORDS] for text in made[:most]])
        values = (vendi(similarities(texts, texts)), alike, new)
        found[step] = dict(zip(FIGURES, values, strict=True))
    return found


def words(text: str) -> list[str]:
    """In order. A line break that JSON spells out is no letter."""
    return re.findall(r"\w+|[-+*/%<>=]+", text.replace("\\n", " "))


def shingles(text: str) -> set[tuple[Hashable, ...]]:
    """Words and pairs of neighbouring words. Texts without any word are alike."""
    found = words(text)[:MOST_WORDS]
    return {*_grams(found, 1), *_grams(found, 2)} or {()}


def vendi(similarity: np.ndarray) -> float:
    """exp of the entropy of the eigenvalues of [N, N] similarities over N (2210.02410): an
    effective number of different things, from 1 to N. NaN of nothing.

    Similarities are positive semidefinite, 1 on the diagonal.
    """
    if not len(similarity):
        return math.nan
    chances = np.linalg.eigvalsh(similarity / len(similarity))
    chances = chances[chances > 1e-12]
    return float(np.exp(-(chances * np.log(chances)).sum()))


def similarities(texts: Sequence[Kinds], others: Sequence[Kinds]) -> np.ndarray:
    """[N, M] Jaccard similarities of sets, none of them empty."""
    places = {kind: n for n, kind in enumerate({*chain.from_iterable([*texts, *others])})}
    rows, columns = _indicators(texts, places), _indicators(others, places)
    shared = (rows @ columns.T).astype(float)
    found: np.ndarray = shared / (rows.sum(1)[:, None] + columns.sum(1) - shared)
    return found


def novelty(texts: Sequence[Kinds], archive: Sequence[Kinds]) -> float:
    """The mean over texts of 1 - the similarity to the most similar of the archive. NaN without
    any; it falls with the size of the archive by itself."""
    if not texts or not archive:
        return math.nan
    return float(1 - similarities(texts, archive).max(1).mean())


def self_bleu(texts: Sequence[Sequence[Hashable]], *, order: int = ORDER) -> float:
    """The mean BLEU of each text against all others (1802.01886), texts given as words.

    Of n-grams up to `order`, or as long as the text, without smoothing: a text that shares none of
    some length scores 0. Texts without words are alike: one scores 1 where there is another, else
    0. The brevity penalty is by the other text of the nearest length. NaN of fewer than two texts.
    """
    if len(texts) < 2:
        return math.nan
    grams = [[Counter(_grams(text, n)) for n in range(1, order + 1)] for text in texts]
    # The two highest counts of each, so that each text can be left out.
    most: list[dict[Hashable, tuple[int, int]]] = [{} for _ in range(order)]
    for each in grams:
        for highest, counted in zip(most, each, strict=True):
            for gram, count in counted.items():
                first, second = highest.get(gram, (0, 0))
                highest[gram] = (count, first) if count > first else (first, max(second, count))
    scores = []
    for place, each in enumerate(grams):
        lengths = [len(text) for other, text in enumerate(texts) if other != place]
        scores.append(_bleu(each, most, len(texts[place]), lengths))
    return sum(scores) / len(scores)


def _bleu(
    grams: Sequence[Counter[tuple[Hashable, ...]]],
    most: Sequence[dict[Hashable, tuple[int, int]]],
    length: int,
    lengths: Sequence[int],
) -> float:
    logs = []
    for counted, highest in zip(grams, most, strict=True):
        if not counted:
            break
        matched = 0
        for gram, count in counted.items():
            first, second = highest[gram]
            matched += min(count, second if first == count else first)
        if not matched:
            return 0.0
        logs.append(math.log(matched / counted.total()))
    if not logs:
        return float(0 in lengths)
    nearest = min(lengths, key=lambda other: (abs(other - length), other))
    return math.exp(sum(logs) / len(logs) + min(0.0, 1 - nearest / length))


def _grams(tokens: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    return [tuple(tokens[place : place + n]) for place in range(len(tokens) - n + 1)]


def _indicators(texts: Sequence[Kinds], places: dict[Hashable, int]) -> np.ndarray:
    found = np.zeros((len(texts), len(places)), dtype=np.float32)
    for row, kinds in enumerate(texts):
        found[row, [places[kind] for kind in kinds]] = 1
    return found
