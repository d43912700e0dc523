"""Checks of what the author of an arena writes: its roles, `acting`, `setup` and `advance`."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from operator import is_, itemgetter
from typing import Any, Generic, Never, TypeVar

from selfplay.errors import ConfigError, nearest

T = TypeVar("T")

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
False. `stage` is computed: see `Computed`.
"""
_kept = itemgetter(*KEPT_BY_ARENA)


def role_counts(kind: type, given: Any) -> dict[str, int]:
    """Return the number of agents of each role.

    Args:
        kind: Class of the arena.
        given: Its roles, as the author wrote them.
    Raises:
        ConfigError: If `given` is not a mapping of names to numbers from 0.
    """
    if isinstance(given, Mapping):
        for role, count in given.items():
            if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
                raise ConfigError(
                    f"{kind.__name__}.roles: {role!r} has {count!r} agents; the number of agents "
                    f"is an integer from 0: write {{{role!r}: 2}}"
                )
        return {role: int(count) for role, count in given.items()}
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


def check_entered(arena: Any, agent: str) -> None:
    """Raise KeyError if an agent has not entered the episode of an arena."""
    if agent in arena.paid:
        return
    if agent in arena.roles:
        agents = [f"{agent}_{number}" for number in range(arena.roles[agent])]
        hint = f"{agent!r} is a role; its agents are {', '.join(agents) or 'none'}"
    else:
        hint = nearest(agent, arena.paid)
    raise KeyError(f"{arena.name}: no agent {agent!r}; {hint}")


class Computed(Generic[T]):
    """A property that an arena cannot assign: an assignment raises ValueError in one line.

    `Arena` computes `stage` in this way.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        """`read` is the function that computes the value from the arena."""
        self.read, self.__doc__ = read, read.__doc__

    def __get__(self, arena: Any, kind: type) -> T:
        if arena is None:  # the class was asked, for example by help()
            return self  # type: ignore[return-value]
        return self.read(arena)

    def __set__(self, arena: Any, value: Never) -> None:
        raise ValueError(f"{arena.name} {_changed_kept(self.read.__name__)}")


def _changed_kept(name: str) -> str:
    """Return the end of the error about an attribute that only `Arena` may change."""
    return f"changed self.{name}, which Arena keeps; choose another name"


class Changing:
    """A context for a call of `setup` or `advance`; `Arena.pay` works only inside it.

    It is entered at every stage of every episode, so its checks are cheap.

    Raises:
        ValueError: At the end of the context, if an attribute of `KEPT_BY_ARENA` is another object
            than before, `history` has other stages, `agents` are others than those that entered, or
            `finished` is no bool. This error replaces an error that the method raised, because the
            change may have caused that one.
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
            raise ValueError(f"{arena.name} {_changed_kept(changed)}") from error

    def call(self, method: str, *arguments: object) -> None:
        """Call `setup` or `advance`. Raises TypeError if it returns anything but None."""
        arena = self.arena
        with self:
            result: Any = getattr(arena, method)(*arguments)
        if result is None:
            return
        kind, advice = type(result).__name__, "it returns nothing"
        if kind in ("coroutine", "generator", "async_generator"):
            word = "yield" if kind == "generator" else "async"
            advice = f"write it without {word}; it returns nothing"
        if kind == "coroutine":
            result.close()  # otherwise Python warns that it was never awaited
        raise TypeError(f"{arena.name}: {method} returned a value of type {kind}; {advice}")

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
