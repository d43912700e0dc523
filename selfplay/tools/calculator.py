"""The calculator: values of arithmetic expressions."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from selfplay.sandbox.literals import LiteralError, parse_expression
from selfplay.tools.tool import Tool, ToolError

LONGEST = 500
"""Largest number of characters of an expression."""
MOST_BITS = 4096
"""Largest number of bits of an integer."""
MOST_DIGITS = 1000
"""Largest number of digits, before or after the point, to which a number is rounded."""


def _rounded(value: int | float, digits: int | None = None) -> int | float:
    """Return the rounded value; Python would compute 10 ** -digits, however large it is."""
    if digits is not None and abs(digits) > MOST_DIGITS:
        raise ToolError("raised", f"round takes at most {MOST_DIGITS} digits")
    return round(value, digits)


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": _rounded,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}


class Calculator(Tool):
    """Evaluates one expression of numbers, + - * / // % **, parentheses and a few functions."""

    description = "Returns the value of an arithmetic expression, e.g. 12 * (3 + 4)."

    def __init__(self, *, seconds: float = 2.0) -> None:
        """`seconds` is the time limit of a call."""
        self.seconds = seconds

    def call(self, expression: str) -> str:  # type: ignore[override]
        """Return the value as text; raises ToolError for anything but arithmetic."""
        if len(expression) > LONGEST:
            raise ToolError("bad_arguments", f"more than {LONGEST} characters")
        try:
            value = _value(parse_expression(expression.strip()).body)
            return f"{value:.12g}" if isinstance(value, float) else str(value)
        except (LiteralError, SyntaxError, MemoryError) as error:
            raise ToolError("syntax", f"not an expression: {error}"[:200]) from error
        except ZeroDivisionError as error:
            raise ToolError("raised", "division by zero") from error
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise ToolError("raised", str(error)[:200]) from error


def _value(node: ast.expr) -> int | float:
    value = _of(node)
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ToolError("raised", "the number is too large")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ToolError("syntax", "numbers only")
    return value


def _of(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return _UNARY[type(node.op)](_value(node.operand))
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(node.left), _value(node.right))
        case ast.BinOp() if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](_value(node.left), _value(node.right))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(_value, node.args))
    raise ToolError("syntax", "only numbers, + - * / // % **, parentheses and known functions")


def _power(base: int | float, exponent: int | float) -> int | float:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and int(base).bit_length() * abs(exponent) > MOST_BITS:
        raise ToolError("raised", "the number is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ToolError("raised", "the value is not a real number")
    return value
