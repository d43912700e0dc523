"""Errors that a user can act on: one line with the problem, its location and what to do."""

import json
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Real
from operator import is_, itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_HERE = Path(__file__).parent
LIBRARY = tuple(str(folder) + os.sep for folder in (_HERE, _HERE.parent / "arenas" / "external"))
"""Folders of this library's own code, which no author of an arena writes."""
INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
"""Folders of installed packages."""
PYTHON = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
"""Folders of Python's own code; those of installed packages may be inside."""

KEPT_BY_ARENA = (
    "agents",
    "created",
    "delayed_rewards",
    "history",
    "infos",
    "left_out",
    "metrics",
    "notes",
    "paid",
    "possible_agents",
    "rewards",
    "roles",
    "seed",
    "task",
    "terminations",
    "truncations",
    "_cumulative_rewards",
    "_moves",
    "_waiting",
)
"""Attributes that `Arena` keeps: `setup` and `advance` of a subclass assign nothing to them.

They change through methods such as `pay`, `note` and `add`. `finished` may be assigned True or
False.
"""
_kept = itemgetter(*KEPT_BY_ARENA)


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


class CollapsedError(SelfplayError):
    """Raised if a metric crosses the collapse threshold of the config, e.g. the fraction of valid
    actions."""


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


def one_line(error: BaseException) -> str:
    """Return the type and message of an error in one printable line, at most 300 characters.

    A sentence in a KeyError loses the quotes that Python puts around it; a missing key keeps them.
    """
    said: object = error
    if isinstance(error, KeyError) and len(error.args) == 1 and " " in str(error.args[0]):
        said = error.args[0]
    return printable(f"{type(error).__name__}: {said}")[:300]


def printable(text: str) -> str:
    """Return a text in one line in which "?" replaces each character that a terminal may obey."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def with_place(error: BaseException) -> str:
    """Return `one_line(error)` with the file and line of the author's code that raised the error.

    The place is the innermost call outside this library, Python and installed packages; without
    such a call, it is the innermost one in an installed package. A file under the current folder is
    named relative to it. Nothing is added if the library alone was running.
    """
    own, installed = _calls(error)
    if not (calls := own or installed):
        return one_line(error)
    file, here = Path(calls[-1].filename), Path.cwd()
    shown = file.relative_to(here) if file.is_relative_to(here) else file
    return f"{one_line(error)} ({shown}, line {calls[-1].lineno})"


def raised_by_author(error: BaseException) -> bool:
    """Return True if code outside this library, Python and installed packages raised the error."""
    return bool(_calls(error)[0])


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


def role_counts(kind: type, given: Any) -> dict[str, int]:
    """Return the number of agents of each role.

    Args:
        kind: Class of the arena.
        given: Its roles, as the author wrote them.
    Raises:
        ConfigError: If `given` is not a mapping.
    """
    if isinstance(given, Mapping):
        return dict(given)
    named = isinstance(given, Sequence) and not isinstance(given, str)
    first = next(iter(given), "player") if named else "player"
    raise ConfigError(
        f"{kind.__name__}.roles: {given!r} is no mapping of roles to numbers of agents; "
        f'write {{"{first}": 1, ...}}'
    )


def named_agents(arena: Any, named: Any) -> list[str]:
    """Return the agents of the next stage.

    Args:
        arena: The arena.
        named: The result of its `acting`.
    Raises:
        ValueError: If `named` is not a sequence of different agents of the episode, at least one.
    """
    listed = [] if named is None or isinstance(named, str) else list(named)
    different = set(listed)
    if not different or not different <= set(arena.agents):
        absent = [agent for agent in listed if agent in arena.to_come()]
        hint = f"; call add({absent[0]!r}) first" if absent else ""
        if isinstance(named, str):
            hint = f"; return a list: {[named] if named in arena.agents else arena.agents[:1]}"
        elif named == []:
            hint = "; to end the game, call finish()"
        raise ValueError(
            f"{arena.name}: acting() returned {named!r}, not agents of the episode{hint}"
        )
    if len(different) < len(listed):
        raise ValueError(f"{arena.name}: acting() named an agent twice: {listed}")
    return listed


class Changing:
    """A context for a call of `setup` or `advance`: only in it, the arena may pay.

    It is entered at every stage of every episode, so it compares identities alone.

    Raises:
        ValueError: At the end of the context, if an attribute of `KEPT_BY_ARENA` is another object
            than before, `history` has other stages, `agents` are others than those that entered, or
            `finished` is no bool. It replaces an error of the method, which may follow from this.
    """

    def __init__(self, arena: Any) -> None:
        """`arena` is the arena whose `setup` or `advance` is called."""
        self.arena = arena

    def __enter__(self) -> None:
        self.before, self.stages = _kept(vars(self.arena)), len(self.arena.history)
        self.arena._may_pay = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        arena = self.arena
        arena._may_pay = False
        usual = error is None or isinstance(error, Exception)  # no interruption of the program
        if usual and (changed := self._changed()):
            raise ValueError(
                f"{arena.name} changed self.{changed}, which Arena keeps; choose another name"
            ) from error

    def _changed(self) -> str:
        """Return the name of an attribute that was changed; "" if there is none."""
        arena = self.arena
        try:
            same = list(map(is_, self.before, _kept(vars(arena))))
        except KeyError as deleted:
            return str(deleted.args[0])
        if not all(same):
            return KEPT_BY_ARENA[same.index(False)]
        if arena.finished is not True and arena.finished is not False:
            return "finished"
        if len(arena.history) != self.stages:
            return "history"
        return "" if arena.agents == list(arena.paid) else "agents"


def is_own(part: object) -> bool:
    """Return True if this library defines the class of an object."""
    return type(part).__module__.partition(".")[0] == _HERE.name


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
