"""A space of designs: the settings of an arena that a designer may choose, and their limits."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar

from selfplay.arena import Arena
from selfplay.types import Task

Settings = dict[str, Any]
"""A checked design: plain data, with exactly the keys of its space."""


class RefusedDesign(ValueError):
    """Raised for a text or settings that are no design. The message is the name of the reason."""


class DesignSpace(ABC):
    """The designable settings of one kind of arena.

    A design is data: numbers and words within limits. `read` accepts only the keys that the space
    names, so that a design cannot name a class, a file or another setting of the arena.
    """

    kind: ClassVar[str]
    """Type of the tasks to design and to play."""
    seats: Mapping[str, int]
    """Number of agents of each role in one play of a designed game."""

    @abstractmethod
    def describe(self) -> str:
        """Return the form and the limits of a design, for the prompt of a designer."""

    @abstractmethod
    def read(self, given: Mapping[str, Any]) -> Settings:
        """Return the checked settings of a design; raises RefusedDesign for anything else."""

    @abstractmethod
    def canonical(self, settings: Settings) -> Any:
        """Return plain data that is equal for designs of the same game."""

    @abstractmethod
    def draw(self, rng: Random) -> Settings:
        """Return a random design."""

    @abstractmethod
    def game(self, settings: Settings) -> Arena:
        """Return the arena of a design, not yet begun.

        Its agents are those of `seats`, all of them from the start.
        """

    @abstractmethod
    def score(self, settings: Settings, game: Arena) -> float:
        """Return 1 minus the regret of a finished play, in [0, 1]."""

    def game_task(self, settings: Settings, rng: Random) -> Task:
        """Return the task with which a play of the game begins."""
        return Task(id="game")

    def written(self, settings: Settings) -> str:
        """Return the text of a design, as a designer writes it."""
        return json.dumps(settings)


def read_design(space: DesignSpace, text: str | None, *, longest: int) -> Settings:
    """Return the settings in a designer's text; raises RefusedDesign for anything else."""
    if text is None:
        raise RefusedDesign("malformed")
    if len(text) > longest:
        raise RefusedDesign("too_long")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedDesign("no_json") from error
    if not isinstance(given, dict):
        raise RefusedDesign("no_object")
    return space.read(given)


def check_keys(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise RefusedDesign unless the keys are exactly those known."""
    if set(given) - set(known):
        raise RefusedDesign("unknown_key")
    if set(known) - set(given):
        raise RefusedDesign("missing_key")


def whole_number(value: Any, least: int, most: int) -> int:
    """Return `value` if it is an integer from `least` to `most`; otherwise raises RefusedDesign,
    with no_integer or out_of_bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedDesign("no_integer")
    if not least <= value <= most:
        raise RefusedDesign("out_of_bounds")
    return value


def play_task(space: DesignSpace, settings: Settings) -> Task:
    """Return the task to play a design; designs of the same game have the same id."""
    text = json.dumps(space.canonical(settings))
    name = blake2b(text.encode(), digest_size=8).hexdigest()
    payload = {"mode": "play", "settings": settings}
    return Task(id=f"{space.kind}-{name}", type=space.kind, payload=payload)


def play_tasks(
    *,
    space: DesignSpace,
    count: int = 0,
    seed: int = 0,
    designs: Sequence[Mapping[str, Any]] = (),
    forbidden: Collection[str] = (),
) -> list[Task]:
    """Return tasks of the given designs, and of `count` different random ones whose ids are not
    `forbidden`.

    Raises ValueError for a design that is refused, and if fewer than `count` different games are
    found.

    Args:
        space: Designable settings with their limits.
        count: Number of random designs.
        seed: Seed of the draw.
        designs: Given designs: setting to value.
        forbidden: Ids of tasks that are not drawn.
    """
    tasks = [play_task(space, space.read(dict(design))) for design in designs]
    found = {task.id: task for task in tasks}
    rng, wanted = Random(seed), len(found) + count
    for _ in range(1000 * count):
        if len(found) == wanted:
            break
        task = play_task(space, space.draw(rng))
        if task.id not in forbidden:
            found.setdefault(task.id, task)
    if len(found) < wanted:
        raise ValueError(f"count: fewer than {count} different random designs were found")
    return list(found.values())


def names_of(tasks: Sequence[Task]) -> frozenset[str]:
    """Return the ids of tasks, for the argument `forbidden` of the arena."""
    return frozenset(task.id for task in tasks)
