"""Requests to the executor and its answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FailureReason(StrEnum):
    """The way in which a run ended; only `OK` comes with a value."""

    OK = "ok"
    SYNTAX = "syntax"  # the program does not compile
    BAD_ARGUMENTS = "bad_arguments"  # the arguments are not plain literals
    INPUT_LIMIT = "input_limit"  # the program or its arguments are longer than the executor takes
    NO_ENTRY = "no_entry"  # the program defines no function of this name
    RAISED = "raised"  # the program raised an exception and did not catch it
    TIMEOUT = "timeout"  # more CPU time than allowed
    STALLED = "stalled"  # more wall-clock time than allowed: it slept, or the machine was too busy
    MEMORY = "memory"
    FORBIDDEN = "forbidden"  # a system call or file that isolation refuses
    OUTPUT_LIMIT = "output_limit"  # the result is longer than allowed
    NOT_PLAIN_DATA = (
        "not_plain_data"  # the result is not a literal, or the result pipe holds no frame
    )
    NONDETERMINISTIC = "nondeterministic"  # fresh processes gave different results
    KILLED = "killed"  # ended by its own signal, or the process that runs programs ended twice
    EXITED = "exited"  # ended without a result, e.g. by sys.exit
    NOT_RUN = "not_run"  # earlier calls of the same program ran out of time


OUT_OF_TIME = frozenset({FailureReason.TIMEOUT, FailureReason.STALLED})
"""Reasons of programs that took too long and were stopped."""
FINAL = frozenset({*OUT_OF_TIME, FailureReason.MEMORY, FailureReason.KILLED})
"""Reasons that one run decides alone: they say nothing about determinism."""
CIRCUMSTANTIAL = frozenset({FailureReason.STALLED, FailureReason.MEMORY, FailureReason.KILLED})
"""Reasons that can depend on the machine and its load: another run may end differently."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One function call to run in a fresh process. `Executor.run` takes a list of them."""

    program: str
    """Python source text."""
    arguments: str
    """Comma-separated Python literals, e.g. `"'abc', 3"`."""
    entry: str = "f"
    """Name of the function that the program defines and that is called."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict on a call. `Executor.run` returns one per call."""

    reason: FailureReason
    """The way in which the call ended."""
    value: str | None = None
    """Canonical literal text of the result if `reason` is `OK`, else None."""
    detail: str = ""
    """One line of at most 200 printable characters. It may quote the program, so it is not to be
    trusted."""

    @property
    def ok(self) -> bool:
        """True if there is a value."""
        return self.reason is FailureReason.OK


def failure(reason: FailureReason, detail: str = "") -> Outcome:
    """Return an outcome without a value; the detail is cut to one printable line."""
    line = "".join(c if c.isprintable() else " " for c in detail[:400])
    return Outcome(reason=reason, detail=line.strip()[:200])


def agreed(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the verdict on the runs of one call: they agree, or the call is nondeterministic.

    A run with a reason in `FINAL` decides alone, because it says nothing about determinism.
    """
    first = outcomes[0]
    for outcome in outcomes:
        if outcome.reason in FINAL:
            return outcome
    for other in outcomes[1:]:
        if (other.reason, other.value) != (first.reason, first.value):
            return failure(
                FailureReason.NONDETERMINISTIC,
                f"{_shown(first)} in one fresh process, {_shown(other)} in another",
            )
    return first


def _shown(outcome: Outcome) -> str:
    text = outcome.value if outcome.value is not None else outcome.reason.value
    return text if len(text) <= 60 else text[:57] + "..."
