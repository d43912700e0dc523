"""Runs hostile programs and returns verdicts on plain data."""

from selfplay.executor.literal import LiteralError, canonical, parse_arguments, parse_literal
from selfplay.executor.outcome import Call, Outcome, Reason
from selfplay.executor.pool import Executor
from selfplay.executor.worker import IsolationError

__all__ = [
    "Call",
    "Executor",
    "IsolationError",
    "LiteralError",
    "Outcome",
    "Reason",
    "canonical",
    "parse_arguments",
    "parse_literal",
]
