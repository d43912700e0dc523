"""Errors that a user can act on: one line that says what, where and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class SelfplayError(Exception):
    """Something the user can mend. The command line prints it as one line and exits with 2."""


class ConfigError(SelfplayError):
    """The configuration asks for something that does not exist or does not fit."""


class PromptTooLong(ConfigError):
    """A prompt leaves no room for an answer in what the model can read.

    In a rollout its episode fails, counted by this name, and the others play on.
    """


class RunError(SelfplayError):
    """A run folder or checkpoint cannot be used as asked."""


class EngineFailed(RunError):
    """An engine broke while it served; another in its place may serve on."""


class DivergedError(SelfplayError):
    """Training produced a value that cannot be learned from, such as a loss that is not finite."""


class CollapsedError(SelfplayError):
    """A policy fell below a threshold that the config set, e.g. its share of valid actions."""


class LearnersLost(SelfplayError):
    """Learners died; the run can go on from its newest checkpoint."""


class StalledError(SelfplayError):
    """Something that was waited for did not come in the time that it was given."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint to append to an error: the nearest valid choice, or the list of a few."""
    known = sorted({str(choice) for choice in choices})
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    if not known:
        return "nothing of that kind exists"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"choose from: {shown}"


def one_line(error: BaseException) -> str:
    """What broke, whatever line breaks or control characters its message holds."""
    words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return "".join(c if c.isprintable() else "?" for c in words)
