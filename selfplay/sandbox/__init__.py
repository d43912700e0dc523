"""Execution of hostile programs in isolated processes, with plain data as arguments and results."""

from selfplay.sandbox.literals import (
    LiteralError,
    canonical,
    parse_arguments,
    parse_expression,
    parse_literal,
    parse_program,
)
from selfplay.sandbox.pool import Executor
from selfplay.sandbox.process import IsolationError
from selfplay.sandbox.types import OUT_OF_TIME, Call, FailureReason, Outcome

__all__ = [
    "OUT_OF_TIME",
    "Call",
    "Executor",
    "FailureReason",
    "IsolationError",
    "LiteralError",
    "Outcome",
    "canonical",
    "parse_arguments",
    "parse_expression",
    "parse_literal",
    "parse_program",
]
