"""Import of objects that a config names by path: functions and factories of PettingZoo envs."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeAlias

import pettingzoo
from pettingzoo.env_registry.exceptions import (
    NameNotFound,
    NamespaceNotFound,
    PettingZooRegistryError,
    VersionNotFound,
)
from pettingzoo.env_registry.registration import aec_registry, parallel_registry

from selfplay.config import trust
from selfplay.errors import ConfigError, nearest, nearest_module, one_line

Factory: TypeAlias = Callable[..., Any]
"""Function that makes an env from keyword arguments."""

MAKERS = ("env", "parallel_env", "raw_env")
"""Names of the functions that make an env in a module; the first existing one is used."""

INSTALLS = {
    **dict.fromkeys(
        ("pyspiel", "open_spiel", "shimmy", "pygame", "chess", "rlcard"), "'selfplay[games]'"
    ),
    "multi_agent_ale_py": "'pettingzoo[atari]', and the ROMs with pip install AutoROM and AutoROM",
    "Box2D": "'pettingzoo[sisl]'",
    "scipy": "'pettingzoo[sisl]'",
    "pymunk": "'pettingzoo[butterfly]'",
    "textarena": "'selfplay[textarena]'",
}
"""Arguments of `pip install` for packages that games import, by import name."""


def function(path: str, what: str) -> Callable[..., Any]:
    """Return the function or class at `package.module.name` or `package.module:name`.

    `what` is the prefix of the ConfigError, which is raised if the object at the path does not
    exist or cannot be called.
    """
    found = _object(path, what)
    if not callable(found):
        raise ConfigError(f"{what}: {path!r} is no function or class")
    return found


def make_env(name: str | Factory, arguments: Mapping[str, Any]) -> Any:
    """Return a new env from PettingZoo's registry (`classic/chess-v6`), a module or a function.

    Raises ConfigError, in one line, if there is no such env, if it needs a missing package, or if
    it refuses the arguments.
    """
    title = name if isinstance(name, str) else getattr(name, "__qualname__", str(name))
    what = f"env {title}"
    try:
        if not isinstance(name, str):
            trust.admit_found(name, title, what, argument=True)
            trust.admit_class(name, arguments, what)
            return name(**arguments)
        if "/" in name:
            return _registered(name, arguments)
        found = _object(name, what)
        maker = next((getattr(found, key) for key in MAKERS if hasattr(found, key)), found)
        if not callable(maker):
            raise ConfigError(f"{what}: the module has none of {', '.join(MAKERS)}")
        trust.admit_found(maker, title, what, argument=True)
        trust.admit_class(maker, arguments, what)
        return maker(**arguments)
    except PettingZooRegistryError as error:
        cause = error.__cause__
        if isinstance(cause, ImportError):
            raise ConfigError(_lacking(what, cause)) from error
        hint = nearest(str(name), [*aec_registry, *parallel_registry])
        raise ConfigError(f"{what}: not in PettingZoo's registry; {hint}") from error
    except ImportError as error:
        raise ConfigError(_lacking(what, error)) from error
    except ConfigError:
        raise
    except Exception as error:  # the author's constructor may raise any error
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise ConfigError(f"{what}: cannot be made with ({shown}): {one_line(error)}") from error


def _registered(name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return pettingzoo.make("aec", name, **arguments)
    except (NamespaceNotFound, NameNotFound, VersionNotFound):
        with suppress(NamespaceNotFound, NameNotFound, VersionNotFound):
            return pettingzoo.make("parallel", name, **arguments)
        raise


def _object(path: str, what: str) -> Any:
    """Return the object at an import path: a module, or an attribute of one."""
    dotted = path.replace(":", ".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise ConfigError(f"{what}: {path!r} is no import path, such as package.module.name")
    trust.admit(dotted, what, argument=True)
    found = _resolved(dotted, what)
    trust.admit_found(found, path, what, argument=True)
    return found


def _resolved(dotted: str, what: str) -> Any:
    home, _, attribute = dotted.rpartition(".")
    if not home:
        return _module(dotted, what)
    try:
        return import_module(dotted)
    except ModuleNotFoundError as error:
        if not dotted.startswith(str(error.name)):
            raise ConfigError(_lacking(what, error)) from error
    except ImportError as error:
        raise ConfigError(_lacking(what, error)) from error
    module = _module(home, what)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        inside = (found.name for found in iter_modules(getattr(module, "__path__", [])))
        known = [*inside, *(key for key in vars(module) if not key.startswith("_"))]
        hint = nearest(attribute, known)
        raise ConfigError(f"{what}: no {attribute!r} in {home}; {hint}") from error


def _module(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if name != missing and not name.startswith(f"{missing}."):
            raise ConfigError(_lacking(what, error)) from error
        hint = nearest_module(missing)
        raise ConfigError(f"{what}: no module {missing!r}; {hint}") from error
    except ImportError as error:
        raise ConfigError(_lacking(what, error)) from error


def _lacking(what: str, error: ImportError) -> str:
    """Return one line about a failed import: the missing package and its install command, or
    the error."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        install = INSTALLS.get(missing)
        how = f"pip install {install}" if install else "install the package that provides it"
        return f"{what}: needs the package {missing!r}, which is not installed; {how}"
    return f"{what}: cannot be imported: {' '.join(str(error).split())[:200]}"
