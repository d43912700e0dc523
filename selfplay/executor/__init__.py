"""Runs hostile programs and returns verdicts on plain data."""

from selfplay.executor.literal import (
    LiteralError,
    canonical,
    parse_arguments,
    parse_expression,
    parse_literal,
    parse_program,
)
from selfplay.executor.outcome import OUT_OF_TIME, Call, Outcome, Reason
from selfplay.executor.pool import Executor
from selfplay.executor.worker import IsolationError

__all__ = [
    "OUT_OF_TIME",
    "Call",
    "Executor",
    "IsolationError",
    "LiteralError",
    "Outcome",
    "Reason",
    "canonical",
    "parse_arguments",
    "parse_expression",
    "parse_literal",
    "parse_program",
]
