"""Indefinite integrals: a numerical verifier of antiderivatives (LADDER, 2503.00735).

On a few random short intervals, the definite integral of the question is compared with the
difference of the answer's values at the ends. The answer must have values there. Formulas are
parsed in a small language of one variable: hostile text is never evaluated as Python, and cannot
take long.
"""

import ast
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from arenas.questions.arena import question_task
from selfplay.rng import derive
from selfplay.sandbox import parse_expression
from selfplay.types import Task

OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "exp": math.exp,
    "log": lambda value: math.log(abs(value)),
    "ln": lambda value: math.log(abs(value)),
    "sqrt": math.sqrt,
}
"""Functions of formulas; log takes the absolute value, as in the antiderivative of 1/x."""
CONSTANTS = {"pi": math.pi, "e": math.e, "C": 0.0}
SMALLEST = 1e-9
"""Smallest integral over one interval that is compared; below it, rounding errors dominate."""
LONGEST = 400
"""Maximum length of a formula, in characters."""
DEEPEST = 40
"""Maximum levels of nesting."""

Function = Callable[[float], float]


class NoFormula(ValueError):
    """Raised for a text that is no formula in x."""


class Integrals:
    """Scores 1 if the answer is an antiderivative of the payload's `question`, else 0.

    The places depend only on the question: they are intervals in which the integrand is finite and
    Simpson's rule is exact enough. On each of them the answer must be finite too, so that it cannot
    exclude places where it is wrong, as `... + 0*asin(x)` tries to. If both sides are too small to
    compare, another place is drawn; an answer without enough places is wrong.
    """

    def __init__(
        self, *, places: int = 5, width: float = 0.1, tolerance: float = 1e-2, reach: float = 10.0
    ) -> None:
        """Use `places` intervals of length `width` or less, which begin in [-reach, reach], and a
        relative `tolerance`."""
        if places < 1 or min(width, tolerance, reach) <= 0:
            raise ValueError("places is at least 1; width, tolerance and reach are above 0")
        self.places, self.width, self.tolerance, self.reach = places, width, tolerance, reach

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; 0 if a text is no formula."""
        question = str(payload["question"])
        try:
            asked, said = formula(question), formula(answer)
        except NoFormula:
            return 0.0
        agreed = 0
        for start, end, wanted in self._drawn(question, asked):
            given = _finite(_risen, said, start, end)
            if given is None:
                return 0.0
            larger = max(abs(wanted), abs(given))
            if larger < SMALLEST:
                continue
            if abs(wanted - given) > self.tolerance * larger:
                return 0.0
            agreed += 1
            if agreed == self.places:
                return 1.0
        return 0.0

    def fault(self, question: str) -> str | None:
        """Return the name of the reason why a text is no usable integrand, or None."""
        try:
            asked = formula(question)
        except NoFormula:
            return "no_formula"
        found = [abs(wanted) for _, _, wanted in self._drawn(question, asked)]
        if len(found) < self.places:
            return "no_values"
        return "too_small" if sum(v >= SMALLEST for v in found) < self.places else None

    def _drawn(self, question: str, asked: Function) -> Iterator[tuple[float, float, float]]:
        """Yield places with their integrals: start, end, value. Equal questions have equal places.

        Lengths differ, so that a wave of the length of an interval cannot hide an error.
        """
        rng = Random(derive("integral", question))
        for _ in range(20 * self.places):
            start = rng.uniform(-self.reach, self.reach)
            end = start + self.width * rng.uniform(0.5, 1.0)
            coarse = _finite(simpson, asked, start, end)
            fine = _finite(simpson, asked, start, end, parts=16)
            if coarse is None or fine is None:
                continue
            # At a pole the sums are finite but wrong, and they change with the number of parts.
            if abs(coarse - fine) <= self.tolerance / 10 * max(abs(fine), SMALLEST):
                yield start, end, fine


def _risen(function: Function, start: float, end: float) -> float:
    return function(end) - function(start)


def _finite(value: Callable[..., float], *arguments: Any, **more: Any) -> float | None:
    """Return the value at the arguments; None if there is no finite value."""
    try:
        number = value(*arguments, **more)
    except (ArithmeticError, ValueError):
        return None
    return number if math.isfinite(number) else None


def formula(text: str) -> Function:
    """Return the function of x in a text such as "x**2 * sin(3*x) + C"; raises NoFormula."""
    if len(text) > LONGEST:
        raise NoFormula(f"longer than {LONGEST} characters")
    try:
        with warnings.catch_warnings():  # "2(x)" parses, and warns that it calls a number
            warnings.simplefilter("ignore")
            body = parse_expression(text.strip().replace("^", "**")).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NoFormula("does not parse") from error
    return _function(body, DEEPEST)


def _function(node: ast.expr, depth: int) -> Function:
    if depth == 0:
        raise NoFormula("too deep")
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return _constant(node.value)
    if isinstance(node, ast.Name):
        if node.id == "x":
            return lambda x: x
        if node.id in CONSTANTS:
            return _constant(CONSTANTS[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner, sign = _function(node.operand, depth - 1), isinstance(node.op, ast.UAdd) * 2 - 1
        return lambda x: sign * inner(x)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _function(node.left, depth - 1), _function(node.right, depth - 1)
        operation = OPERATIONS[type(node.op)]
        return lambda x: operation(left(x), right(x))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        outer = FUNCTIONS.get(node.func.id)
        if outer is not None and len(node.args) == 1 and not node.keywords:
            call, argument = outer, _function(node.args[0], depth - 1)
            return lambda x: call(argument(x))
    raise NoFormula(f"{type(node).__name__} is no part of a formula")


def _constant(value: float) -> Function:
    try:
        number = float(value)
    except OverflowError as error:
        raise NoFormula("a number is too large") from error
    return lambda x: number


def simpson(function: Function, start: float, end: float, *, parts: int = 8) -> float:
    """Return the definite integral, by Simpson's rule over an even number of parts."""
    step = (end - start) / parts
    inner = sum((4 if n % 2 else 2) * function(start + n * step) for n in range(1, parts))
    return step / 3 * (function(start) + inner + function(end))


def integrands() -> list[Task]:
    """Return integrands that need several steps, as roots of a ladder; all have antiderivatives."""
    return [question_task("integral", text) for text in INTEGRANDS]


INTEGRANDS = (
    "x**2 * exp(3*x)",
    "x * cos(2*x) + x**3",
    "log(x) * x**2",
    "exp(2*x) * sin(3*x)",
    "1 / (x**2 + 4*x + 13)",
    "(3*x + 1) / (x**2 - 4)",
    "x**3 / (x**2 + 1)",
    "sin(x)**3 * cos(x)**2",
    "1 / (exp(x) + 1)",
    "atan(x)",
    "x * atan(x)",
    "sqrt(x**2 + 1) * x**3",
    "log(x**2 + 1)",
    "sin(log(x))",
    "x**2 / sqrt(4 - x**2)",
    "1 / (x * (x + 1)**2)",
)
