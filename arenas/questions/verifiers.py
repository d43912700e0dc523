"""Verifiers, which score answers, and the parsing and comparison of answers."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import Match, SequenceMatcher
from fractions import Fraction
from numbers import Real
from string import punctuation, whitespace
from typing import Any, Protocol, runtime_checkable

from selfplay.credit.rewards import normalized_answer
from selfplay.errors import ConfigError
from selfplay.types import well_formed

LONGEST_NUMBER = 100
"""Maximum length of a number, in characters."""
MOST_PAIRS = 10_000_000
"""Maximum pairs of equal characters of a comparison; 2,000 characters of code need 2 million."""
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_LIST_COMMA = re.compile(r"(?<=\d),(?=\d)")
_POINT = re.compile(r"(?<!\w)\.(?=\d)|(?<=\d)\.(?=\d)")
_PERCENT = re.compile(r"(?<=\d)\s?%")
_BINARY = re.compile(
    r"(?:(?<=[\d)|])|(?<=[\d)]!)|(?<=(?<![A-Za-z])[A-Za-z])|(?<=(?<![A-Za-z])[A-Za-z]!))"
    r" ?[-+^*/=] ?(?=[-+]?[\d(.|]|[-+]?[A-Za-z](?![A-Za-z]))"
)
"""Operation between numbers, brackets and letters that are no part of a word."""
_LEADING_MINUS = re.compile(r"^- (?=[\d(.$]|[A-Za-z](?: ?[^A-Za-z ]|$))")
_MINUS = re.compile(r"(?<![A-Za-z0-9)])-(?=[\w.$(])")
_DOUBLED = re.compile(r"([=&|])\1+")
_RELATION = re.compile(r" ?(?:[<>!]=|[<>&|]) ?")
_HALF_OPEN = re.compile(r"\[([^][(),]*,[^][(),]*)\)|\(([^][(),]*,[^][(),]*)\]")
_NOT = re.compile(r"(?<![A-Za-z0-9)\]!|])!(?=[A-Za-z(!])")
_FACTORIAL = re.compile(r"(?:(?<=[\d)\]|])|(?<=(?<![A-Za-z])[A-Za-z]))!+(?!\w)")
_WORD_BEFORE = re.compile(r"[A-Za-z]{2} ")
"""End of a word that another word follows; then a last exclamation mark ends a sentence."""
_CHARGE = re.compile(
    r"(?<=[A-Za-z0-9])(?:[+#]+(?=[ ),;.\]]|$)|-+(?=[.,;:!?)\]]*$))"
    r"|(?<=(?<![A-Za-z])[A-Za-z])-(?= )"
)
"""Sign at the end of a word: a grade, a blood group, an ion, a language such as C++ or C#. A minus
within a text counts after a single letter only, because it can be a dash."""
_KEPT = (_BINARY, _RELATION, _POINT, _PERCENT, _MINUS, _NOT, _FACTORIAL, _CHARGE)
_ASCII = str.maketrans(
    {"≤": "<=", "≥": ">=", "≠": "!=", "¬": "!", "∧": "&"}
    | {"\N{LOGICAL OR}": "|", "\N{MINUS SIGN}": "-"}
)
_LETTERS = dict(zip(".%-+^*/=<>!&|#[]()", "ⴰⴱⴲⴳⴴⴵⴶⴷⴸⴹⴺⴻⴼⴽⴾⴿⵀⵁ", strict=True))
"""Letters that stand for marks, because `normalized_answer` removes marks."""


@runtime_checkable
class Verifier(Protocol):
    """Protocol of objects that score answers; forks of an arena share them.

    One that waits for a service has `blocking = True`, and several threads call it.
    """

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score in [0, 1] of any text as an answer to the task of this payload."""
        ...


def waits(*parts: object) -> bool:
    """Return True if one of these verifiers waits for a service, so that an arena advances in a
    thread (`Arena.blocking`)."""
    return any(getattr(part, "blocking", False) for part in parts)


def score_of(verifier: Verifier, answer: str, payload: Mapping[str, Any]) -> float:
    """Return the score of an answer.

    Raises ValueError in one line that names the verifier, if it returns anything but a number from
    0 to 1.
    """
    score: Any = verifier(answer, payload)
    if isinstance(score, Real) and 0.0 <= float(score) <= 1.0:
        return float(score)
    shown = f"{score!r}" if isinstance(score, Real | None) else type(score).__name__
    raise ValueError(
        f"verifier {type(verifier).__name__} returned {shown} for an answer; "
        "a number from 0 to 1 is needed"
    )


@runtime_checkable
class QuestionVerifier(Verifier, Protocol):
    """Protocol of verifiers that can check any proposed question."""

    def fault(self, question: str) -> str | None:
        """Return the fault of a question; None if it can be answered."""
        ...


class Matches:
    """Verifier with score 1 if the answer has the meaning of the payload's `answer`, else 0."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; raises ConfigError for a task without an answer."""
        if "answer" not in payload:
            asked = str(payload.get("question", ""))[:80]
            raise ConfigError(
                f"verifier: Matches needs an 'answer' in every task, and that of {asked!r} has "
                "none; add answers, or choose a verifier that needs none"
            )
        return float(meaning(answer) == meaning(str(payload["answer"])))


class Similarity:
    """Verifier whose score is the similarity of the answer to the payload's `answer`.

    It is the reward of SWE-RL (2502.18449): twice the number of matching characters divided by the
    number of all characters, as `difflib.SequenceMatcher` finds them. It pays nearly right texts,
    and wrong numbers too: numbers need `Matches`. An answer has score 0 if its characters match
    those of `answer` in so many ways that the comparison would take more than about a second.
    """

    def __init__(self, *, longest: int = 2000) -> None:
        """Args:
        longest: Maximum characters of a text, because the time grows at least with the product
            of the lengths. A longer answer has score 0.
        """
        if longest < 1:
            raise ValueError(f"longest is at least 1, not {longest}")
        self.longest = longest

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; raises ConfigError for a task without an answer or with a long one."""
        wanted = payload.get("answer")
        if wanted is None or len(str(wanted)) > self.longest:
            raise ConfigError(
                "verifier: Similarity needs an 'answer' in every task, of at most "
                f"longest={self.longest} characters"
            )
        if len(answer) > self.longest:
            return 0.0
        try:
            return _LimitedMatcher(None, answer, str(wanted), autojunk=False).ratio()
        except _TooManyPairs:
            return 0.0


class _TooManyPairs(Exception):
    """Raised if a comparison of two texts would take too long."""


class _LimitedMatcher(SequenceMatcher[str]):
    """A matcher that stops after `MOST_PAIRS` pairs of equal characters.

    A pair counts each time it is looked at: once in usual texts, and thousands of times if a text
    such as "ababab" is compared with "aaaaaa".
    """

    a: str
    b2j: Mapping[str, Sequence[int]]
    pairs = 0

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Match:
        """Return the longest match within two ranges; raises _TooManyPairs."""
        self.pairs += sum(len(self.b2j.get(each, ())) for each in self.a[alo:ahi])
        if self.pairs > MOST_PAIRS:
            raise _TooManyPairs
        return super().find_longest_match(alo, ahi, blo, bhi)


def meaning(answer: str) -> str:
    """Return the meaning of an answer, which ignores differences in notation.

    The meaning of a number is its value. Other texts are normalised as in SQuAD, but these marks
    are kept: signs in numbers and formulas ("3.5 kg", "-5 %", "x - 1", which is "x-1"), relations
    ("x < 3", "x >= 2", which is "x ≥ 2"), logic ("p & q", "p || q", "!p"), brackets of half-open
    intervals ("[0, 1)"), signs at the end of words ("A+", "Na+", "C++"), and exclamation marks
    after a single letter, a number or a bracket ("n!"), unless they end a text of several words.
    An answer that is only "a", "an" or "the" is kept too.
    """
    plain = _LEADING_MINUS.sub("-", " ".join(answer.translate(_ASCII).split()))
    number = number_in(plain)
    if number is not None:
        return f"={number}"
    if plain.endswith("!") and _WORD_BEFORE.search(plain):
        plain = plain.rstrip("!")
    plain = _DOUBLED.sub(r"\1", plain)
    plain = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), plain)
    plain = _LIST_COMMA.sub(" ", _HALF_OPEN.sub(_kept_brackets, plain))
    for pattern in _KEPT:
        plain = pattern.sub(_kept_marks, plain)
    bare = answer.strip(punctuation + whitespace).lower()
    return normalized_answer(plain) or bare or answer.strip()


def _kept_marks(found: re.Match[str]) -> str:
    return "".join(_LETTERS[mark] for mark in found[0] if mark != " ")


def _kept_brackets(found: re.Match[str]) -> str:
    inside = found[0][1:-1]
    return f" {_LETTERS[found[0][0]]}{inside}{_LETTERS[found[0][-1]]} "


def vote(answer: str | None, verifier: Verifier) -> str | None:
    """Return the meaning of an answer for votes, "" if there is no answer.

    Returns None for another verifier than `Matches`, for which texts of different meaning may be
    equally right.
    """
    if not isinstance(verifier, Matches):
        return None
    return meaning(answer) if answer else ""


def number_in(text: str) -> Fraction | None:
    """Return the number in a text such as "7", "-1.50", "3/4" or "1,000", or None."""
    plain = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text.strip().rstrip(".,"))
    # Exponents are not allowed: "1e999999999" would have a billion digits.
    if len(plain) > LONGEST_NUMBER or not set(plain) <= set("0123456789+-./"):
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def json_object(action: str | None) -> dict[str, Any] | None:
    """Return the object of a JSON action; None for any other text."""
    try:
        said = json.loads(action or "")
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def read_argued(action: str | None, *, answer: int, argument: int) -> dict[str, str] | None:
    """Return {"answer": ..., "argument": ...} from a JSON action.

    The argument is cut to `argument` characters. Returns None if there is no answer, or one longer
    than `answer` characters.
    """
    try:
        data = json.loads(action or "")
        said, because = data["answer"].strip(), data.get("argument", "")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    if not said or len(said) > answer or not isinstance(because, str):
        return None
    # JSON escapes can contain invalid text, such as lone surrogates.
    return {"answer": well_formed(said), "argument": well_formed(because.strip()[:argument])}
