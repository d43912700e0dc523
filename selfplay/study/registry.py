"""Registry of the measures: every module of `selfplay.study.measures` that assigns `MEASURE`."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfplay.study.measure import Measure

PACKAGE = "selfplay.study.measures"
"""Package whose modules declare the measures."""


@cache
def measures() -> "dict[str, Measure]":
    """Return every measure by its name, in alphabetical order; imports their modules."""
    names = [module.name for module in iter_modules(import_module(PACKAGE).__path__)]
    modules = [import_module(f"{PACKAGE}.{name}") for name in names]
    declared: list[Measure] = [m.MEASURE for m in modules if "MEASURE" in vars(m)]
    return {measure.name: measure for measure in sorted(declared, key=lambda each: each.name)}


def comparable() -> list[str]:
    """Return the names of the measures that `compare` can apply to each run of its sets."""
    return [name for name, measure in measures().items() if measure.comparable]
