"""Verifiers: how right an answer to a task is, and what counts as an answer."""

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from selfplay.errors import ConfigError
from selfplay.rewards import normalized_answer
from selfplay.types import well_formed

LONGEST_NUMBER = 100
"""Characters."""


@runtime_checkable
class Verifier(Protocol):
    """Scores answers. An arena shares it with its forks, so it may hold a model."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """A score in [0, 1] of an answer to the task of this payload; no text makes it raise."""
        ...


class Matches:
    """1 where the answer says what the payload's `answer` says, else 0 (see `meaning`)."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """The score; ConfigError for a task that does not say its answer."""
        if "answer" not in payload:
            raise ConfigError(
                "verifier: Matches needs tasks with an 'answer', and one has none; give them one, "
                "or choose a verifier that knows it"
            )
        return float(meaning(answer) == meaning(str(payload["answer"])))


def meaning(answer: str) -> str:
    """What an answer says: equal for answers that differ in writing alone.

    A number is its value; anything else is normalised as SQuAD does, which would take the sign and
    the point out of a number.
    """
    number = number_in(answer)
    return f"={number}" if number is not None else normalized_answer(answer) or answer.strip()


def vote(answer: str | None, verifier: Verifier) -> str | None:
    """What a vote counts an answer as, "" for none; None where another verifier than `Matches`
    says what is right: to it answers may be one that differ in meaning as text."""
    if not isinstance(verifier, Matches):
        return None
    return meaning(answer) if answer else ""


def number_in(text: str) -> Fraction | None:
    """The number that a text is, if it is one: "7", "-1.50", "3/4", "1,000"."""
    plain = text.strip().rstrip(".").replace(",", "")
    # Without an exponent: "1e999999999" would be a number of a billion digits.
    if len(plain) > LONGEST_NUMBER or not set(plain) <= set("0123456789+-./"):
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def read_argued(action: str | None, *, answer: int, argument: int) -> dict[str, str] | None:
    """{"answer": ..., "argument": ...} of an action in that form, cut to so many characters of
    argument; None where there is no answer, or one longer than `answer` characters."""
    try:
        data = json.loads(action or "")
        said, because = data["answer"].strip(), data.get("argument", "")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    if not said or len(said) > answer or not isinstance(because, str):
        return None
    # JSON escapes can smuggle in what is no text.
    return {"answer": well_formed(said), "argument": well_formed(because.strip()[:argument])}
