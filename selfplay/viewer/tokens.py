"""A completion token by token: what each was, how likely, and what it was credited with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from selfplay.confined import is_confined
from selfplay.figures import number
from selfplay.recorded import Advantage
from selfplay.types import Turn

LIKELY = (-0.05, -0.25, -0.7, -2.0)
"""Log-probabilities, in nats, at which the shade of a token changes."""
MOST_TOKENS = 4_000
"""Tokens of one completion that are shown."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token as it is shown."""

    text: str
    """What it reads as."""
    shade: str
    """Its class: likely-0 (almost certain) to likely-4, gain-0 to gain-2, loss-1, loss-2."""
    learned: bool
    """Whether it carries loss."""
    title: str
    """Its figures, in words."""


def tokens(turn: Turn, advantage: Advantage, *, run: Path, colour: str) -> list[Token]:
    """The completion's tokens, coloured by `likelihood` or by `advantage`.

    Texts come from the tokenizer in the run's checkpoint; without it a token reads as its number.
    """
    ids = turn.completion_ids[:MOST_TOKENS]
    texts = _texts(ids, run, turn.policy)
    given = advantage if isinstance(advantage, list) else [advantage or 0.0] * len(ids)
    largest = max(map(abs, given), default=0.0)
    return [
        Token(
            text=text,
            shade=_gain(value, largest) if colour == "advantage" else _likely(logprob),
            learned=bool(learned),
            title=f"token {number_}: log-probability {number(logprob)} nats, advantage "
            f"{number(value)}{'' if learned else ', no loss'}",
        )
        for number_, text, logprob, learned, value in zip(
            ids,
            texts,
            _padded(turn.logprobs, len(ids), 0.0),
            _padded(turn.trainable, len(ids), 1),
            _padded(given, len(ids), 0.0),
            strict=True,
        )
    ]


def _padded(values: Sequence[float], length: int, filler: float) -> list[float]:
    """As many values as tokens, whatever a record holds."""
    return [*values[:length], *[filler] * (length - len(values))]


def _likely(logprob: float) -> str:
    return f"likely-{sum(logprob < bound for bound in LIKELY)}"


def _gain(value: float, largest: float) -> str:
    if value == 0 or not largest:
        return "gain-0"
    return f"{'gain' if value > 0 else 'loss'}-{2 if abs(value) > largest / 2 else 1}"


def _texts(ids: Sequence[int], run: Path, policy: str) -> list[str]:
    known = _tokenizer_of(run, policy)
    if known is None:
        return [f"\u27e8{each}\u27e9" for each in ids]
    return [known.decode([each], skip_special_tokens=False) for each in ids]


def _tokenizer_of(run: Path, policy: str) -> Tokenizer | None:
    """The policy's own, or that of the policy that it is a snapshot of: no other fits its ids."""
    name = policy.partition("@")[0]
    found = sorted((run / "checkpoints").glob("*/policies/*/tokenizer.json"), reverse=True)
    for path in found:
        if path.parent.name == name and path.is_file() and is_confined(run, path):
            try:
                return _tokenizer(path, path.stat().st_mtime_ns)
            except Exception:  # the library's own: a checkpoint that was dropped, or is damaged
                continue
    return None


@lru_cache(maxsize=8)
def _tokenizer(path: Path, stamp: int) -> Tokenizer:
    """Loaded once for each version of the file."""
    return Tokenizer.from_file(str(path))
