"""Sources of examples for a warm start, which the author of an arena writes."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Protocol, runtime_checkable

from selfplay.types import Demonstration, Observation


@runtime_checkable
class DemonstrationStream(Protocol):
    """A source of demonstrations. The author of an arena writes it; warm starts read it."""

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield endless demonstrations; `progress` in [0, 1] is the completed fraction of the warm
        start."""
        ...


class Demonstrations(DemonstrationStream, Protocol):
    """A source of demonstrations for a new model; it also chooses the model's tokens."""

    def pieces(self) -> Sequence[str]:
        """Return frequent fixed strings, each of which becomes one token."""
        ...


class ExampleSource:
    """Base class of sources that do more than yield examples; a subclass replaces some members.

    A source that replaces none of these members need not derive from it. Warm starts read them.
    """

    @property
    def turns(self) -> int:
        """Largest number of turns that one agent takes in one episode."""
        return 1

    def prepare(self, report: Callable[[str], None]) -> None:
        """Find the examples; call `report` with lines about the progress if this takes long."""

    def summary(self) -> str:
        """Return one line about the examples; "" for none."""
        return ""

    def questions(self) -> Sequence[tuple[str, Observation, Sequence[str]]]:
        """Return (role, observation, legal moves) on which the trained model is tested."""
        return ()


MEMBERS = tuple(name for name in vars(ExampleSource) if not name.startswith("_"))
"""Names of the members that only a subclass of `ExampleSource` may have."""


def optional_members(source: object) -> ExampleSource:
    """Return the source itself if it is an `ExampleSource`; else an `ExampleSource` of defaults.

    Raises ValueError if another class has one of these members, because it would have no effect.
    """
    if isinstance(source, ExampleSource):
        return source
    if found := [name for name in MEMBERS if hasattr(type(source), name)]:
        raise ValueError(
            f"{type(source).__name__}.{found[0]} has no effect; derive the class from "
            "selfplay.arena.demonstrations.ExampleSource"
        )
    return ExampleSource()
