"""Demonstrations for a mixture of arenas: those of each part, with the mixture's role names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random

from selfplay.arena.demonstrations import Demonstrations, ExampleSource, optional_members
from selfplay.types import Demonstration


class MixtureDemonstrations(ExampleSource):
    """Stream of demonstrations that are sampled from the parts with given weights."""

    def __init__(self, *, parts: Mapping[str, Demonstrations], shares: Mapping[str, float]) -> None:
        """Args:
        parts: Sources by the mixture's names of its arenas.
        shares: Weights by the same names.
        """
        if not parts or set(parts) != set(shares) or min(shares.values()) <= 0:
            raise ValueError("parts and shares must name the same arenas, each share above 0")
        self.parts, self.shares = dict(parts), {name: shares[name] for name in parts}
        self._optional = [optional_members(part) for part in parts.values()]

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations of all parts without end."""
        streams = {name: part.stream(rng, progress) for name, part in self.parts.items()}
        while True:
            (name,) = rng.choices(list(self.shares), list(self.shares.values()))
            shown = next(streams[name])
            yield replace(shown, role=f"{name}_{shown.role}")

    def prepare(self, report: Callable[[str], None]) -> None:
        """Call `prepare` of each part."""
        for part in self._optional:
            part.prepare(report)

    def pieces(self) -> list[str]:
        """Return the pieces of all parts."""
        return list(dict.fromkeys(p for part in self.parts.values() for p in part.pieces()))
