"""Objects from config nodes: `_target_` names a class or function, other keys are arguments.

Every key is checked against the target's signature and type hints before any object is built, so
that a typo costs one line and not a run.
"""

import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from selfplay.config import trust
from selfplay.config.schedule import is_schedule
from selfplay.config.shipped_configs import with_keys
from selfplay.errors import (
    ConfigError,
    SelfplayError,
    SettingError,
    nearest,
    nearest_module,
    one_line,
    raised_by_author,
    states_a_fault,
    with_place,
)

TARGET = trust.TARGET
PLAIN = (str, int, float, bool)
"""Types of parameters that no service has."""
T = TypeVar("T")


@runtime_checkable
class NamesItsKey(Protocol):
    """An object that names its config key in errors which it raises later, such as a role.

    `build` tells it the key.
    """

    def set_config_key(self, key: str) -> None:
        """Keep the config key of this object, such as "roles.solver"."""


def build(node: Any, *, where: str = "", provided: Mapping[str, Any] | None = None) -> Any:
    """Return the object that a config node describes; plain values are unchanged.

    Args:
        node: Plain data; mappings with `_target_` become objects, inner ones first.
        where: Key path of the node, for errors.
        provided: Services by name, for parameters of the same name that the config omits. If a
            parameter takes no text, the value `services.NAME` is replaced by the service NAME.
    Raises:
        ConfigError: In one line that begins with the key path, for a key or value that does not
            fit, and for an error of an author's code.
    """
    if isinstance(node, Mapping):
        if TARGET in node:
            target, values = resolve(node, where=where, provided=provided)
            made = call(target, values, where=where)
            if isinstance(made, NamesItsKey):
                made.set_config_key(where)
            return made
        return {k: build(v, where=join(where, k), provided=provided) for k, v in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [build(v, where=join(where, i), provided=provided) for i, v in enumerate(node)]
    return node


def resolve(
    node: Mapping[str, Any], *, where: str, provided: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the target of a node and its checked arguments, with inner nodes built.

    The arguments, and the ConfigError that it raises, are those of `build`.
    """
    target = import_target(node[TARGET], where)
    trust.admit_class(target, node, where)
    inner = {key: value for key, value in node.items() if key != TARGET}
    values = {k: build(v, where=join(where, k), provided=provided) for k, v in inner.items()}
    takes, given = signature(target, where), provided or {}
    values |= {k: v for k, v in given.items() if k in takes.known and k not in values}
    for key, value in values.items():
        if (name := _service_named(value, takes.hints.get(key))) in given:
            values[key] = given[name]
    return target, check_arguments(target, values, where=where)


def make(target: type[T], node: Mapping[str, Any], *, where: str, base: T | None = None) -> T:
    """Return the settings of a dataclass that a config node holds, converted and checked.

    Args:
        target: The dataclass.
        node: Settings by name, as plain data.
        where: Key path of the node, for errors.
        base: Settings that those of the node replace; None: the defaults.
    """
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where}: {node!r} does not fit: it holds settings by name")
    values = check_arguments(target, node, where=where)
    made: T = call(target if base is None else partial(replace, base), values, where=where)
    return made


def call(target: Any, values: Mapping[str, Any], *, where: str) -> Any:
    """Call a target; its ValueError becomes a ConfigError.

    So does any other error of an author's code, with the file and line. Errors of the system and of
    this library are raised as they are.
    """
    try:
        return target(**values)
    except SettingError as error:
        raise ConfigError(join(where, error)) from error
    except Exception as error:
        authored = raised_by_author(error)
        if isinstance(error, ValueError) and (states_a_fault(error) or not authored):
            named = str(error).startswith(f"{where}: ")  # the message says it for users in Python
            raise ConfigError(str(error) if named else f"{where}: {error}") from error
        if isinstance(error, SelfplayError | OSError | ImportError) or not authored:
            raise
        raise ConfigError(f"{where}: {_title(target)}: {with_place(error)}") from error


def check(node: Any, *, where: str = "", provided: Collection[str] = ()) -> None:
    """Raise ConfigError for the first fault in a node, without building anything.

    `where` is the key path of the node, and `provided` names the parameters that `build` gets.
    """
    expected: dict[str, Any] = {}
    for path, inner in _targets(node, where):
        target = import_target(inner[TARGET], path)
        trust.admit_class(target, inner, path)
        values = {key: value for key, value in inner.items() if key != TARGET}
        pending = {key for key, value in values.items() if any(_targets(value, ""))}
        expected |= {join(path, key): hint for key, hint in signature(target, path).hints.items()}
        check_arguments(
            target,
            values,
            where=path,
            pending=pending,
            provided=provided,
            expected=expected.get(path),
        )


def services_named(node: Any, services: Mapping[str, Any]) -> set[str]:
    """Return the names of the services that `build` gives to the targets in a node, and of the
    services that those services need. `services` maps names to config nodes."""
    found = set[str]()
    for path, inner in _targets(node, ""):
        takes = signature(import_target(inner[TARGET], path), path)
        found |= {name for name in takes.known if name in services and name not in inner}
        found |= {_service_named(value, takes.hints.get(key)) for key, value in inner.items()}
    found &= services.keys()
    others = {name: each for name, each in services.items() if name not in found}
    return found | services_named([services[name] for name in found], others) if found else found


def check_arguments(
    target: Any,
    values: Mapping[str, Any],
    *,
    where: str,
    pending: Collection[str] = (),
    provided: Collection[str] = (),
    reserved: Collection[str] = (),
    expected: Any = None,
) -> dict[str, Any]:
    """Return `values` as arguments of `target`, converted to the declared types.

    Args:
        target: Class or function to call.
        values: Arguments by name.
        where: Key path, for errors.
        pending: Names of `values` that are still nodes, with unknown types.
        provided: Parameters that the program sets if `values` omits them.
        reserved: Parameters that only the program may set.
        expected: Declared type of the parameter that gets the result of `target`.
    Raises:
        ConfigError: For an unknown key, a missing one, or a value of another type.
    """
    takes = signature(target, where)
    known = [name for name in takes.known if name not in reserved]
    for name in values:
        if name not in known and (name in reserved or not takes.anything):
            hint = nearest(name, known) if known else f"{_title(target)} takes no settings"
            raise ConfigError(f"{join(where, name)}: unknown key; {hint}")
    for name in takes.needed:
        if name not in values and name not in provided and name not in reserved:
            hint = "" if takes.hints.get(name) in PLAIN else _service_hint(name)
            if inspect.isfunction(target) and _is_called(expected):
                hint = (
                    "; a config calls a function at once: to have it called later, name a class "
                    "with __call__"
                )
            raise ConfigError(f"{join(where, name)}: missing; {_title(target)} needs it{hint}")
    return {
        name: value
        if name in pending
        or name not in takes.hints
        or not _is_plain(value)
        or _service_named(value, takes.hints[name]) in provided
        else convert(takes.hints[name], value, where=join(where, name))
        for name, value in values.items()
    }


def _is_called(hint: Any) -> bool:
    """Return True if a type hint is that of objects which are called, alone or in a union."""
    return any(
        typing.get_origin(each) is Callable or (isinstance(each, type) and "__call__" in vars(each))
        for each in _branches(hint)
    )


def _branches(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself."""
    union = typing.get_origin(hint) in (typing.Union, UnionType)
    return typing.get_args(hint) if union else (hint,)


def _service_named(value: Any, hint: Any) -> str:
    """Return NAME of the text `services.NAME`, for a parameter of a type without text; else ""."""
    if not isinstance(value, str) or hint is None or str in _branches(hint):
        return ""
    prefix, _, name = value.partition(".")
    return name if prefix == "services" else ""


def _service_hint(name: str) -> str:
    """Return which shipped configs of the group `services` provide a parameter of this name."""
    named = " or ".join(f"services={each}" for each in with_keys("services", {name}))
    return f"; choose {named}" if named else ""


def convert(hint: Any, value: Any, *, where: str) -> Any:
    """Return `value` converted to a type hint, e.g. "1e-4" to float; raises ConfigError.

    A mapping becomes the dataclass of the hint, alone, in a union, or in a list or mapping of it.
    """
    inner = typing.get_args(hint)
    branches = _branches(hint)
    target = next(filter(_is_settings, branches), None)
    if target is not None and isinstance(value, Mapping):
        return make(target, value, where=where)
    if target is None and inner and _is_settings(inner[-1]):
        if isinstance(value, Mapping):
            return {key: convert(inner[-1], value[key], where=join(where, key)) for key in value}
        if isinstance(value, list):
            return [convert(inner[-1], each, where=join(where, i)) for i, each in enumerate(value)]
    try:
        # A dataclass has its own pydantic settings and accepts no others.
        adapter = TypeAdapter(hint, config=None if is_dataclass(hint) else _LENIENT)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value  # not a type of plain data: the target itself checks it
    try:
        converted = adapter.validate_python(value)
    except ValidationError as error:
        if is_schedule(value):
            raise ConfigError(
                f"{where}: this key takes a number and no schedule; give a number, {where}=N, if a "
                "config refers here to a setting that has a schedule, such as "
                "sampling.default.max_tokens"
            ) from error
        first = error.errors()[0]
        path = where
        # The location inside a union also names its branches, which are no keys.
        if isinstance(value, Mapping | list) and len(error.errors()) == 1:
            for part in first["loc"]:
                path = join(path, part)
        hint_text = ""
        if typing.get_origin(hint) is typing.Literal and isinstance(value, str):
            hint_text = f"; {nearest(value, typing.get_args(hint))}"
        if first["type"] == "is_instance_of" and isinstance(value, str) and "." in value:
            hint_text = f"; to build one, write {{{TARGET}: {value}}}"
            if name := _service_named(value, hint):
                hint_text = f"; the config has no service {name!r}"
        problem, given = first["msg"][:1].lower() + first["msg"][1:], first["input"]
        # A list with too few items is reported at the place of the first missing item.
        depth = {"tuple_type": 0, "too_long": 0, "missing": 1}.get(first["type"])
        if depth == len(first["loc"]) and (needed := _list_needed(branches)):
            path, problem, given = where, needed, value
        raise ConfigError(f"{path}: {given!r} does not fit: {problem}{hint_text}") from error
    if isinstance(value, bool) and isinstance(converted, int | float) and converted is not value:
        raise ConfigError(f"{where}: {str(value).lower()} does not fit: a number is needed")
    return converted


def _list_needed(branches: Sequence[Any]) -> str:
    """Return the words for the list that a tuple among the types needs; "" without a tuple."""
    needed = next((each for each in branches if typing.get_origin(each) is tuple), None)
    if needed is None:
        return ""
    items = typing.get_args(needed)
    if ... in items:
        return "should be a list"
    kind = "numbers" if set(items) <= {int, float} else "values"
    example = ", such as [0.9, 0.99]" if items == (float, float) else ""
    return f"should be a list of {len(items)} {kind}{example}"


def _is_settings(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


_LENIENT = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)
"""Pydantic settings; `run.name=7` is parsed as a number but means the name "7"."""


def import_target(name: Any, where: str, *, key: str = TARGET) -> Any:
    """Return the class or function of a dotted name under `key` in a config.

    Raises ConfigError if there is none, or if `selfplay.config.trust` does not allow it.
    """
    module, _, attribute = str(name).rpartition(".")
    at = join(where, key)
    if not module or not attribute or module.startswith("."):
        raise ConfigError(f"{at}: {name!r} is not a dotted name, such as package.module.Class")
    trust.admit(str(name), at, argument=key != TARGET)
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        # A missing dependency of an existing module is not a wrong name.
        if module != missing and not module.startswith(f"{missing}."):
            raise ConfigError(f"{at}: {name} needs the package {missing!r}") from error
        hint = nearest_module(missing)
        raise ConfigError(f"{at}: no module {missing!r} for {name!r}; {hint}") from error
    except Exception as error:  # the import of an author's module may raise any error
        # The message of a SyntaxError has its own place.
        said = one_line(error) if isinstance(error, SyntaxError) else with_place(error)
        raise ConfigError(f"{at}: cannot import {module}: {said}") from error
    if not hasattr(home, attribute):
        public = [
            key for key, value in vars(home).items() if callable(value) and not key.startswith("_")
        ]
        own = [key for key in public if getattr(vars(home)[key], "__module__", "") == module]
        hint = nearest(attribute, own or public)
        raise ConfigError(f"{at}: no {attribute!r} in {module}; {hint}")
    target = getattr(home, attribute)
    if not callable(target):
        raise ConfigError(f"{at}: {name} is neither a class nor a function")
    trust.admit_found(target, str(name), at, argument=key != TARGET)
    if key != TARGET:  # the settings of a target are admitted with its node
        trust.admit_class(target, {}, at)
    return target


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Parameters of a callable that can be passed by name."""

    known: tuple[str, ...]
    """Parameters, including those of base classes if `**kwargs` are passed on."""
    needed: tuple[str, ...]
    """Parameters without a default."""
    hints: Mapping[str, Any]
    """Declared types of the parameters."""
    anything: bool
    """True if the callable accepts any other name."""


def signature(target: Any, where: str = "") -> Signature:
    """Return the parameters of a callable, including those of base classes via `**kwargs`."""
    found: dict[str, inspect.Parameter] = {}
    hints: dict[str, Any] = {}
    anything = False
    for function in _functions(target):
        try:
            own = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{join(where, TARGET)}: {_title(target)} has no readable signature; wrap it in a "
                "function"
            ) from error
        for parameter in own:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                found.setdefault(parameter.name, parameter)
        with suppress(NameError):  # names that exist only for type checkers: types are not checked
            hints = {**typing.get_type_hints(function), **hints}
        anything = any(p.kind is p.VAR_KEYWORD for p in own)
        if not anything:
            break
    return Signature(
        known=tuple(found),
        needed=tuple(name for name, p in found.items() if p.default is p.empty),
        hints=hints,
        anything=anything,
    )


def _functions(target: Any) -> Iterator[Any]:
    """Yield the functions that get a target's arguments, each passing the rest to the next."""
    if not inspect.isclass(target):
        yield target
        return
    initialisers = [
        vars(layer)["__init__"] for layer in target.__mro__ if "__init__" in vars(layer)
    ]
    own = [function for function in initialisers if function is not object.__init__]
    if own:
        yield from own
    else:
        yield target if target.__new__ is not object.__new__ else _takes_nothing


def _takes_nothing() -> None:
    """Represent the initialiser of a class that has none."""


def join(where: str, key: object) -> str:
    """Return the key path with `key` appended."""
    return f"{where}.{key}" if where else str(key)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _targets(node: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        if TARGET in node:
            yield where, node
        for key, value in node.items():
            yield from _targets(value, join(where, key))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _targets(value, join(where, index))


def _title(target: Any) -> str:
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"
