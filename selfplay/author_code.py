"""Calls of the parts that an author adds: each error and each wrong result becomes one line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from random import Random
from typing import Any, Protocol, TypeVar, get_args, runtime_checkable

from selfplay.errors import HERE, ConfigError, SelfplayError, raised_by_author, with_place
from selfplay.types import Metric, Task, Unit

T = TypeVar("T")

MEMBERS: Mapping[str, tuple[str, ...]] = {
    "run": ("keeps_checkpoint",),
    "curriculum": ("tasks", "observe", "ready", "metrics", "state_dict", "load_state_dict"),
    "population": ("policy_of",),
    "sampler": ("sample", "played", "metrics"),
    "credit": ("assign", "metrics", "modules", "state_dict", "load_state_dict"),
    "objective": (
        "loss",
        "prepare",
        "at",
        "kl",
        "divergence",
        "reference",
        "ema_rate",
        "reads_reference",
        "entropy",
        "linear_in_advantage",
        "one_step",
        "off_policy",
    ),
    "collapse": ("seed",),
    "league": ("named",),
    "runtime": ("check",),
}
"""Names of the attributes that the object of each config key must have."""
ADVICE: Mapping[str, str] = {
    "curriculum": "`selfplay new curriculum NAME` writes a class that has all methods",
    "sampler": "`selfplay new sampler NAME` writes a class that has all methods",
    "credit": "derive it from selfplay.credit.base.StatelessCredit, or from CreditMethod and write "
    "state_dict and load_state_dict",
    "objective": "derive it from selfplay.PolicyLoss, or write them",
}
"""Advice about a missing attribute, for keys whose objects authors write."""


def check_members(part: object, key: str, where: str) -> None:
    """Raise ConfigError for an object that lacks an attribute which its config key needs.

    Args:
        part: The object, which may be an author's own.
        key: Key of `MEMBERS`.
        where: Config key of the object, for errors.
    """
    missing = [name for name in MEMBERS.get(key, ()) if not hasattr(part, name)]
    if missing:
        advice = ADVICE.get(key, f"see selfplay list {key}")
        raise ConfigError(
            f"{where}: {type(part).__name__} is not a valid {key}, because it lacks "
            f"{', '.join(missing)}; {advice}"
        )


@contextmanager
def naming(call: str, part: object, passing: Sequence[BaseException] = ()) -> Iterator[None]:
    """A context that converts an error of an author's code to a ConfigError of one line.

    Args:
        call: What is called, for the beginning of the line, such as "credit: Median.assign".
        part: The object that is called. If this library does not define the class of `part`, every
            error is converted. If it does, only an error that code outside this library raised is
            converted. A SelfplayError is never converted.
        passing: Errors of other code that the part called; they are not converted. The list may
            grow during the call.
    """
    try:
        yield
    except SelfplayError:
        raise
    except Exception as error:
        if any(error is each for each in passing):
            raise
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


@runtime_checkable
class TaskMaker(Protocol):
    """The part of an arena that makes tasks; every `selfplay.Arena` has it."""

    def default_task(self, rng: Random) -> Task:
        """Return a task of the arena's own, whose random draws come from `rng`."""
        ...


def default_task_of(arena: TaskMaker, rng: Random) -> Task:
    """Return a task of an arena's own. Raises ConfigError if the arena returns anything else."""
    task: Any = arena.default_task(rng)
    if not isinstance(task, Task):
        raise ConfigError(
            f"{type(arena).__name__}.default_task returned {type(task).__name__}, not a Task"
        )
    return task


class DeclaresMetrics(Protocol):
    """An object that declares its metrics, as every arena does."""

    measures: Mapping[str, Metric]
    chief: tuple[str, ...]


def check_declared(arena: DeclaresMetrics) -> None:
    """Raise ConfigError if `measures` or `chief` of an arena is not what its type says."""
    kind = type(arena).__name__
    measures: Any = arena.measures
    chief: Any = arena.chief
    if not isinstance(measures, Mapping):
        raise ConfigError(
            f"{kind}.measures is {measures!r}, not a mapping of names to Metric; write for example "
            "{'solved': Metric(unit='fraction')}"
        )
    for name, metric in measures.items():
        if not isinstance(name, str) or not isinstance(metric, Metric):
            unit = metric if metric in get_args(Unit) else "fraction"
            raise ConfigError(
                f"{kind}.measures: {name!r} is {metric!r}, not a Metric; write "
                f"{{{str(name)!r}: Metric(unit={unit!r})}}"
            )
    if not isinstance(chief, tuple | list) or not all(isinstance(name, str) for name in chief):
        raise ConfigError(
            f"{kind}.chief is {chief!r}, not a tuple of names; write for example "
            f"({next(iter(measures), 'solved')!r},)"
        )


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
        found = part.metrics()
    return stated_numbers(found, name)


def stated_numbers(found: Any, name: str) -> dict[str, float]:
    """Return the metrics that an author's code returned.

    Args:
        found: The result.
        name: What was called, for the beginning of the line, such as "sampler: Mine.metrics".
    Raises:
        ConfigError: If the result is not a mapping of names to numbers.
    """
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
        advice: End of the error about a value that is not plain data.
    Raises:
        ConfigError: In one line that names the class, for an error of an author's code, for a
            state that is not plain data, and for a key that is not a text.
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
        for other in _keys_without_text({key: value}):
            (text,) = json.loads(json.dumps({other: 0}))
            inside = "" if other is key else f" in {key!r}"
            raise ConfigError(
                f"{name} has the key {other!r}{inside}; keys must be texts: a checkpoint would "
                f"give {text!r} back for {other!r}"
            )
    return dict(state)


def _keys_without_text(value: Any) -> Iterator[object]:
    """Yield the keys of dictionaries, at every depth, that are not texts."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield key
            yield from _keys_without_text(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _keys_without_text(inner)


def is_own(part: object) -> bool:
    """Return True if this library defines the class of an object."""
    return type(part).__module__.partition(".")[0] == HERE.name
