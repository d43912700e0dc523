"""Calls of the parts that an author adds: each error and each wrong result becomes one line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, Protocol, TypeVar

from selfplay.errors import HERE, ConfigError, SelfplayError, raised_by_author, with_place

T = TypeVar("T")


@contextmanager
def naming(call: str, part: object) -> Iterator[None]:
    """A context that converts an error of an author's code to a ConfigError of one line.

    Args:
        call: What is called, for the beginning of the line, such as "credit: Median.assign".
        part: The object that is called. If this library does not define the class of `part`, every
            error is converted. If it does, only an error that code outside this library raised is
            converted. A SelfplayError is never converted.
    """
    try:
        yield
    except SelfplayError:
        raise
    except Exception as error:
        if is_own(part) and not raised_by_author(error):
            raise
        raise ConfigError(f"{call} raised {with_place(error)}") from error


def stated_list(found: Any, kind: type[T], call: str) -> list[T]:
    """Return what an author's code returned, as a list.

    Args:
        found: The result.
        kind: Class of its elements.
        call: What was called, for the beginning of the line, such as "curriculum: Sums.tasks".
    Raises:
        ConfigError: If the result is not a list of `kind`.
    """
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ConfigError(f"{call} returned {type(found).__name__}, not a list of {kind.__name__}")
    for each in found:
        if not isinstance(each, kind):
            raise ConfigError(
                f"{call} returned a list with {type(each).__name__}, not of {kind.__name__}"
            )
    return list(found)


class Saved(Protocol):
    """An object with a state in a checkpoint. `saved_state` reads it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        ...


class Measurable(Protocol):
    """An object with metrics. `stated_metrics` reads it."""

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics by name."""
        ...


def stated_metrics(part: Measurable, where: str) -> dict[str, float]:
    """Return the metrics of a credit method, a curriculum or a sampler.

    Args:
        part: The object, which may be an author's own.
        where: Config key of the object, for errors.
    Raises:
        ConfigError: In one line that names the class, for an error of an author's code, and for a
            result that is not a mapping of names to numbers.
    """
    name = f"{where}: {type(part).__name__}.metrics"
    with naming(name, part):
        found: Any = part.metrics()
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} returned {type(found).__name__}, not a mapping of numbers")
    for metric, value in found.items():
        if not isinstance(metric, str) or not isinstance(value, Real):
            raise ConfigError(f"{name} gave {metric!r} the value {value!r}; a metric is a number")
    return {
        metric: value if isinstance(value, float | int) else float(value)
        for metric, value in found.items()
    }


def saved_state(part: Saved, where: str, *, advice: str = "") -> dict[str, Any]:
    """Return the state of a credit method or a curriculum for a checkpoint.

    Args:
        part: The object, which may be an author's own.
        where: Config key of the object, for errors.
        advice: Words after the list of plain data in an error.
    Raises:
        ConfigError: In one line that names the class, for an error of an author's code, and for a
            state that is not plain data.
    """
    name = f"{where}: {type(part).__name__}.state_dict"
    with naming(name, part):
        state: Any = part.state_dict()
    if is_own(part):
        return dict(state)
    if not isinstance(state, Mapping):
        raise ConfigError(f"{name} returned {type(state).__name__}, not a dictionary of plain data")
    for key, value in state.items():
        try:
            json.dumps({key: value})
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{name} has {key!r}, which a checkpoint cannot hold ({error}); plain data only: "
                f"texts, numbers, lists and dictionaries{advice}"
            ) from error
    return dict(state)


def is_own(part: object) -> bool:
    """Return True if this library defines the class of an object."""
    return type(part).__module__.partition(".")[0] == HERE.name
