"""Errors that a user can act on: one line with the problem, its location and what to do."""

import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
"""Folder of this library."""
LIBRARY = tuple(str(folder) + os.sep for folder in (HERE, HERE.parent / "arenas" / "external"))
"""Folders of this library's own code, and of its adapters for other libraries' games."""
SHIPPED = tuple(str(HERE.parent / name) + os.sep for name in ("arenas", "roles"))
"""Folders of the arenas and roles that come with this library."""
INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
"""Folders of installed packages."""
PYTHON = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
"""Folders of Python's own code; those of installed packages may be inside."""
ELSEWHERE = (*PYTHON, *INSTALLED)
"""Folders of code that neither this library nor an author wrote, except `LIBRARY` and `SHIPPED`."""


class SelfplayError(Exception):
    """Base class of errors that the user can fix. The command line prints one line and exits with
    code 2."""


class ConfigError(SelfplayError):
    """Raised if the config names something that does not exist or does not fit."""


class SettingError(ConfigError, ValueError):
    """Raised by an object for a setting that does not fit; the line begins with the setting's name.

    The builder of a config puts the key path of the object before it.
    """


class PromptTooLong(ConfigError):
    """Raised if a prompt leaves no room for an answer in the model's context.

    In a rollout the episode is truncated, or fails if it has no turn yet. Both are counted by this
    class name, and the other episodes continue.
    """


class RunError(SelfplayError):
    """Raised if a run folder or checkpoint cannot be used as requested."""


class EngineFailed(RunError):
    """Raised if an engine broke while it served; a new engine may continue."""


class DivergedError(SelfplayError):
    """Raised if training gives a value that cannot be learned from, such as a loss that is not
    finite."""


class RunEnded(SelfplayError):
    """Base class of errors that end a run because further steps would teach its policies nothing
    good. The report of the run shows the cause."""


class CollapsedError(RunEnded):
    """Raised if a metric crosses the collapse threshold of the config, e.g. the fraction of valid
    actions."""


class NothingToLearn(RunEnded):
    """Raised if the games give nothing to learn from: too many of them fail, no group has a signal,
    or the curriculum does not get its first tasks."""


class LearnersLost(SelfplayError):
    """Raised if learner processes died; the run can continue from its newest checkpoint."""


class StalledError(SelfplayError):
    """Raised if an expected event did not happen within its time limit."""


def closest(name: object, choices: Iterable[str]) -> str | None:
    """Return the choice that is most like `name`, or None if none is like it."""
    return next(iter(get_close_matches(str(name), list(choices), n=1)), None)


def nearest(name: object, choices: Iterable[str], prefix: str = "") -> str:
    """Return a hint to append to an error: the nearest valid choice, or a list of choices.

    Args:
        name: The wrong name; a key of a YAML file can also be a number.
        choices: The valid names.
        prefix: Text that is shown before each choice and is no part of the comparison.
    """
    known = sorted({str(choice) for choice in choices})
    close = closest(name, known)
    if close is not None:
        return f"did you mean {prefix + close!r}?"
    if not known:
        return "nothing of that kind exists"
    shown = ", ".join(prefix + choice for choice in known[:12]) + (
        ", ..." if len(known) > 12 else ""
    )
    return f"choose from: {shown}"


def nearest_module(missing: str) -> str:
    """Return a hint for a module that does not exist: the nearest module of its package.

    A top-level name is compared with the modules and packages in the current folder, where an
    author's own are. If none is like it, the hint is to run in another folder.
    """
    parent = missing.rpartition(".")[0]
    if parent:
        folders = getattr(import_module(parent), "__path__", [])
        modules = [f"{parent}.{found.name}" for found in pkgutil.iter_modules(folders)]
        return nearest(missing, modules)
    own = [place.parent.name for place in islice(Path.cwd().glob("*/*.py"), 1000)]
    own += [found.name for found in pkgutil.iter_modules([str(Path.cwd())])]
    if closest(missing, own) is None:
        return "run in the folder that holds this package, or name the folder in PYTHONPATH"
    return nearest(missing, own)


def check_choice(name: str, value: object, known: Iterable[object]) -> None:
    """Raise SettingError in one line if the setting `name` has a value that is not in `known`."""
    listed = list(known)
    if value not in listed:
        raise SettingError(f"{name} is one of {', '.join(map(str, listed))}, not {value!r}")


def require_package(
    package: str, extra: str, where: str = "", *, error: type[Exception] = ConfigError
) -> None:
    """Raise an error in one line if a package is not installed; imports nothing.

    Args:
        package: Name of the package in `import`.
        extra: Extra of this library that installs the package.
        where: Start of the line: what needs the package.
        error: Type of the error.
    """
    if find_spec(package) is None:
        raise error(_missing(package, extra, where))


def import_package(package: str, extra: str, where: str) -> Any:
    """Return a package, or raise ConfigError as `require_package` does.

    The line names the package that the import did not find, which may be one that `package` needs.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ConfigError(_missing(error.name or package, extra, where)) from error
    except ImportError as error:
        raise ConfigError(f"{where}: {package} cannot be imported: {one_line(error)}") from error


def _missing(package: str, extra: str, where: str) -> str:
    place = f"{where}: " if where else ""
    return f"{place}needs the package {package!r}; pip install 'selfplay[{extra}]'"


def one_line(error: BaseException) -> str:
    """Return the type and message of an error in one printable line, at most 300 characters.

    A sentence in a KeyError loses the quotes that Python puts around it; a missing key keeps them.
    """
    said: object = error
    if isinstance(error, KeyError) and len(error.args) == 1 and " " in str(error.args[0]):
        said = error.args[0]
    return printable(f"{type(error).__name__}: {said}")[:300]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def printable(text: str) -> str:
    """Return a text in one line, with "?" for each character that is not printable.

    Some of these characters are commands to a terminal.
    """
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def with_place(error: BaseException) -> str:
    """Return `one_line(error)` with the file and line of the author's code that raised the error.

    The place is the innermost call outside this library, Python and installed packages; without
    such a call, it is the innermost one in a shipped arena or role, or else in an installed
    package. A file under the current folder is named relative to it. Nothing is added if the
    library alone was running.
    """
    own, installed = _calls(error)
    authored = [call for call in own if not call.filename.startswith(SHIPPED)]
    if not (calls := authored or own or installed):
        return one_line(error)
    file, here = Path(calls[-1].filename), Path.cwd()
    shown = file.relative_to(here) if file.is_relative_to(here) else file
    return f"{one_line(error)} ({shown}, line {calls[-1].lineno})"


def states_a_fault(error: ValueError) -> bool:
    """Return True if the message of an error is a sentence of this library or of an author.

    That is so for a ValueError itself, and for a class that this library or an author defines. A
    class of Python or of an installed package, such as JSONDecodeError, does not say what is wrong
    in a config.
    """
    file = getattr(sys.modules.get(type(error).__module__), "__file__", None) or ""
    own = file.startswith((*LIBRARY, *SHIPPED))
    return type(error) is ValueError or own or not (file == "" or file.startswith(ELSEWHERE))


def raised_by_author(error: BaseException) -> bool:
    """Return True if code outside this library, Python and installed packages raised the error."""
    return bool(_calls(error)[0])


def _calls(
    error: BaseException,
) -> tuple[list[traceback.FrameSummary], list[traceback.FrameSummary]]:
    """Return the calls of an error's traceback in authors' code and in installed packages."""
    own, installed = list[traceback.FrameSummary](), list[traceback.FrameSummary]()
    for call in traceback.extract_tb(error.__traceback__):
        if call.filename.startswith(INSTALLED) and not call.filename.startswith(LIBRARY):
            installed.append(call)
        elif not call.filename.startswith((*LIBRARY, *PYTHON, "<")):
            own.append(call)
    return own, installed
