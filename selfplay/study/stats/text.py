"""Metrics of texts: diversity, novelty, phrases of self-correction, distance to a base policy.

In similarities, novelty and self-BLEU, words are runs of letters, digits and `_`, or of operators,
and the first 200 words of a text count. Other metrics take words that the caller gives, or words
between white space. The similarity of two texts is the Jaccard similarity of their sets of words
and pairs of neighbouring words. This kernel is positive semidefinite, as the Vendi score requires.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain, takewhile
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from selfplay.study.stats.mutual_information import entropy
from selfplay.types import Turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PHRASES = (
    *("recheck", "rethink", "reassess", "reevaluate", "re-evaluate", "reevaluation"),
    *("re-examine", "reexamine", "reconsider", "reanalyze", "double-check", "check again"),
    *("think again", "verify again", "go over the steps"),
)
"""Phrases of Liu et al. 2025, 2503.20783; substrings of the text in lower case."""


def effective_number(items: Sequence[Hashable]) -> float:
    """Return exp of the entropy of the kinds (Hill number of order 1); NaN without items."""
    if not items:
        return math.nan
    return float(np.exp(entropy(np.array(list(Counter(items).values())) / len(items))))


def distinct(texts: Iterable[Sequence[Hashable]], n: int = 2) -> float:
    """Return the number of different n-grams over that of all n-grams; NaN without n-grams.

    The n-grams are those inside of each text, which is given as its words.
    """
    grams = [
        tuple(words[place : place + n]) for words in texts for place in range(len(words) - n + 1)
    ]
    return len(set(grams)) / len(grams) if grams else math.nan


def shared_words(texts: Iterable[Sequence[str]]) -> int:
    """Return the number of words that all texts, given as their words, begin with."""
    columns = zip(*texts, strict=False)
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, columns))


def corrections(texts: Sequence[str]) -> tuple[float, float]:
    """Return (fraction of texts with a phrase of self-correction, phrases per 1000 words)."""
    hits = [sum(text.lower().count(phrase) for phrase in PHRASES) for text in texts]
    words = sum(len(text.split()) for text in texts)
    share = sum(map(bool, hits)) / len(hits) if hits else math.nan
    return share, 1000 * sum(hits) / words if words else math.nan


def drift(
    turns: Sequence[Turn], base: "Mapping[str, PreTrainedModel]"
) -> tuple[float, float, float]:
    """Return (k1, k3, surprisal under the base) in nats per sampled token.

    k1 is the mean of log p - log p0, and k3 the mean of p0/p - 1 + k1. Both are unbiased estimates
    of the KL divergence of the policy from the base at the sampling temperature; k3 is never
    negative (Schulman 2020). `base` maps policy names to models. Turns that do not fit their model
    are left out, see `fits`.
    """
    mine: list[float] = []
    theirs: list[float] = []
    for turn in turns:
        if _read(turn, base) and fits(turn, base[turn.policy]):
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


def _read(turn: Turn, base: "Mapping[str, PreTrainedModel]") -> bool:
    return bool(turn.completion_ids) and turn.policy in base and turn.temperature > 0


def fits(turn: Turn, model: "PreTrainedModel") -> bool:
    """Return True if the model has the turn's tokens, and the turn a prompt and log-probabilities.

    Records of another program, or of a run with another tokenizer, may have other tokens.
    """
    size = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    ids = [*turn.prompt_ids, *turn.completion_ids]
    whole = bool(turn.prompt_ids) and len(turn.logprobs) == len(turn.completion_ids)
    return whole and min(ids) >= 0 and max(ids) < size


def misfits(turns: Iterable[Turn], base: "Mapping[str, PreTrainedModel]") -> int:
    """Return the number of turns that `drift` leaves out because they do not fit their model."""
    return sum(_read(turn, base) and not fits(turn, base[turn.policy]) for turn in turns)


def logprobs(model: "PreTrainedModel", turn: Turn) -> list[float]:
    """Return the [C] log-probabilities of a turn's tokens in nats, at its temperature."""
    import torch

    ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]], device=model.device)
    with torch.inference_mode():
        logits = model.eval()(input_ids=ids, use_cache=False).logits[0]
    rows = logits[len(turn.prompt_ids) - 1 : -1].double() / turn.temperature
    chosen = torch.tensor([*turn.completion_ids], device=model.device)
    found: list[float] = rows.log_softmax(-1).gather(-1, chosen[:, None])[:, 0].tolist()
    return found


MOST_WORDS = 200
"""Number of words of a text that count."""
ORDER = 4
"""Longest n-grams of self-BLEU."""
ARCHIVE = 64
"""Number of earlier texts that new ones are compared with, at most half of all texts."""
LIKENESS_METRICS = ("Vendi score", "self-BLEU", "novelty")
"""Names of the metrics of `likeness`."""

Kinds = Collection[Hashable]
"""Items of a text, such as its words and pairs of words."""


def likeness(
    actions: Mapping[int, Sequence[str]], *, most: int, proposals: bool = False, seed: int = 0
) -> dict[int, dict[str, float]]:
    """Return by step the Vendi score, self-BLEU and novelty of its first `most` actions.

    Novelty is NaN unless these are proposals and there are enough earlier ones. All metrics are
    NaN if no action has several words. Each step must have equally many actions, in random order.

    Args:
        actions: Step to its actions.
        most: Largest number of actions of a step that count.
        proposals: True if the actions are proposals.
        seed: Seed of the choice of earlier actions.
    """
    if not any(len(words(text)) > 1 for made in actions.values() for text in made):
        return {step: dict.fromkeys(LIKENESS_METRICS, math.nan) for step in actions}
    found = {}
    size = min(ARCHIVE, sum(map(len, actions.values())) // 2)
    earlier: list[str] = []
    for step, made in sorted(actions.items()):
        texts = [shingles(text) for text in made[:most]]
        new = math.nan
        if proposals and len(earlier) >= size:
            archive = Random(f"{seed}-{step}").sample(earlier, size)
            # The archive includes an empty text: a text without a proposal is not new.
            new = novelty(texts, [shingles(text) for text in ("", *archive)])
        earlier += made
        alike = self_bleu([words(text)[:MOST_WORDS] for text in made[:most]])
        values = (vendi(similarities(texts, texts)), alike, new)
        found[step] = dict(zip(LIKENESS_METRICS, values, strict=True))
    return found


def words(text: str) -> list[str]:
    """Return the words of a text in order. A line break that JSON escapes is not a letter."""
    return re.findall(r"\w+|[-+*/%<>=]+", text.replace("\\n", " "))


def shingles(text: str) -> set[tuple[Hashable, ...]]:
    """Return words and pairs of neighbouring words. All texts without words are alike."""
    found = words(text)[:MOST_WORDS]
    return {*_grams(found, 1), *_grams(found, 2)} or {()}


def vendi(similarity: np.ndarray) -> float:
    """Return the Vendi score (2210.02410): an effective number of different items, from 1 to N.

    It is exp of the entropy of the eigenvalues of [N, N] similarities over N; NaN without items.
    The similarities are positive semidefinite with 1 on the diagonal.
    """
    if not len(similarity):
        return math.nan
    chances = np.linalg.eigvalsh(similarity / len(similarity))
    chances = chances[chances > 1e-12]
    return float(np.exp(-(chances * np.log(chances)).sum()))


def similarities(texts: Sequence[Kinds], others: Sequence[Kinds]) -> np.ndarray:
    """Return [N, M] Jaccard similarities of sets that are not empty."""
    places = {kind: n for n, kind in enumerate({*chain.from_iterable([*texts, *others])})}
    rows, columns = _indicators(texts, places), _indicators(others, places)
    shared = (rows @ columns.T).astype(float)
    found: np.ndarray = shared / (rows.sum(1)[:, None] + columns.sum(1) - shared)
    return found


def novelty(texts: Sequence[Kinds], archive: Sequence[Kinds]) -> float:
    """Return the mean over texts of 1 - the similarity to the most similar text of the archive.

    NaN without texts or archive. A larger archive alone makes the value smaller.
    """
    if not texts or not archive:
        return math.nan
    return float(1 - similarities(texts, archive).max(1).mean())


def self_bleu(texts: Sequence[Sequence[Hashable]]) -> float:
    """Return the mean BLEU of each text against all others (1802.01886).

    It uses n-grams up to `ORDER` or the length of the text, without smoothing: a text that shares
    no n-gram of some length scores 0. Texts without words are alike: such a text scores 1 if there
    is another one, else 0. The brevity penalty uses the other text of the nearest length. NaN for
    fewer than two texts. A text is a list of words.
    """
    if len(texts) < 2:
        return math.nan
    grams = [[Counter(_grams(text, n)) for n in range(1, ORDER + 1)] for text in texts]
    # The second highest count of an n-gram is the highest one if the text with the highest is left
    # out.
    most: list[dict[Hashable, tuple[int, int]]] = [{} for _ in range(ORDER)]
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
