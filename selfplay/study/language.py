"""Figures of language: diversity at equal size, phrases of self-correction, distance to a base."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

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
