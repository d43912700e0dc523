"""Metrics that a user computes from recorded ones, such as the difference of two accuracies."""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from selfplay.errors import ConfigError, nearest

LONGEST = 500
"""Largest number of characters of a derived metric."""
TERM = re.compile(r"\{([^{}]+)\}")
"""A recorded metric in an expression."""
ARITHMETIC = "metrics in braces, numbers, + - * / and parentheses are"
"""Parts of an expression, in the words of an error."""
NAME = re.compile(r"[\w./%+-]+")
"""Name of a derived metric. It has no comma, colon or @, which other names of estimates contain."""
OPERATORS: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
"""The operations of expressions."""


@dataclass(frozen=True, kw_only=True)
class DerivedMetric:
    """A metric of a study that is computed from recorded metrics of the same step.

    `DerivedMetric.parse` makes it from the command line; the measure `metrics` reads it.
    """

    name: str
    """Name in the study."""
    terms: Mapping[str, str]
    """Identifier in the expression to the recorded metric that it stands for."""
    expression: ast.expr
    """Arithmetic of numbers and identifiers."""

    @classmethod
    def parse(cls, text: str) -> "DerivedMetric":
        """Return the metric of NAME=EXPRESSION, such as `added={a/last} - {a/first}`.

        An expression has recorded metrics in braces, numbers, + - * / and parentheses. Raises
        ConfigError for another text.
        """
        name, equals, expression = text.partition("=")
        name = name.strip()
        if len(text) > LONGEST:
            raise _refused(text, f"at most {LONGEST} characters are")
        if not equals or not NAME.fullmatch(name):
            raise _refused(text, "a name of letters, digits and _ . / % + - is")
        metrics = list(dict.fromkeys(TERM.findall(expression)))
        terms = {f"m{place}": metric.strip() for place, metric in enumerate(metrics)}
        places = {metric: place for place, metric in enumerate(metrics)}
        plain = TERM.sub(lambda found: f" m{places[found[1]]} ", expression)
        try:
            tree = ast.parse(plain.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _refused(text, ARITHMETIC) from error
        metric = cls(name=name, terms=terms, expression=tree)
        used = sum(isinstance(node, ast.Name) for node in ast.walk(tree))
        if not terms or used != len(TERM.findall(expression)) or not metric._known(tree):
            raise _refused(text, ARITHMETIC)
        return metric

    def check(self, recorded: Mapping[str, object]) -> None:
        """Raise ConfigError if the name is a recorded metric, or if a term is not one."""
        if self.name in recorded:
            raise ConfigError(
                f"--derive {self.name}: a recorded metric has this name; choose another"
            )
        for term in self.terms.values():
            if term not in recorded:
                raise ConfigError(
                    f"--derive {self.name}: no metric {term!r}; {nearest(term, list(recorded))}"
                )

    def value(self, row: Mapping[str, float]) -> float:
        """Return the value at a step; NaN if a term is missing there, or for a division by 0."""
        known = {identifier: row.get(metric, math.nan) for identifier, metric in self.terms.items()}
        try:
            return _computed(self.expression, known)
        except (ZeroDivisionError, OverflowError):
            return math.nan

    def _known(self, node: ast.expr) -> bool:
        """Return True if an expression has nothing but arithmetic of numbers and terms."""
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                return type(op) in OPERATORS and self._known(left) and self._known(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._known(operand)
            case ast.Constant(value=value):
                return type(value) in (int, float)
            case ast.Name(id=name):
                return name in self.terms
        return False


def _computed(node: ast.expr, known: Mapping[str, float]) -> float:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_computed(left, known), _computed(right, known))
        case ast.UnaryOp(operand=operand):
            return -_computed(operand, known)
        case ast.Name(id=name):
            return known[name]
        case ast.Constant(value=int() | float() as value):
            return float(value)
    raise AssertionError(f"an expression that was not checked: {ast.dump(node)}")


def _refused(text: str, needed: str) -> ConfigError:
    return ConfigError(
        f"--derive {text[:80]}: {needed} needed; write NAME=EXPRESSION, such as "
        "'gain={evaluation/after/accuracy} - {evaluation/before/accuracy}'"
    )
