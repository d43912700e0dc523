"""Demonstrations for a mixture of arenas: each part's own, under the part's role names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from selfplay.types import Demonstration


class DemonstrationSource(Protocol):
    """Those of one arena."""

    def pieces(self) -> Sequence[str]:
        """Frequent fixed strings."""
        ...

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Endless demonstrations."""
        ...


class MixtureDemonstrations:
    """Draws from the parts by their shares."""

    def __init__(
        self, *, parts: Mapping[str, DemonstrationSource], shares: Mapping[str, float]
    ) -> None:
        """`parts` by the names that the mixture has for its arenas; every one has a share."""
        if not parts or set(parts) != set(shares) or min(shares.values()) <= 0:
            raise ValueError("parts and shares name the same arenas, each share above 0")
        self.parts, self.shares = dict(parts), {name: shares[name] for name in parts}

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Endless demonstrations of all parts."""
        streams = {name: part.stream(rng, progress) for name, part in self.parts.items()}
        while True:
            (name,) = rng.choices(list(self.shares), list(self.shares.values()))
            shown = next(streams[name])
            yield replace(shown, role=f"{name}_{shown.role}")

    def prepare(self, report: Callable[[str], None]) -> None:
        """Find the situations of the parts that look for them."""
        for part in self.parts.values():
            if prepare := getattr(part, "prepare", None):
                prepare(report)

    def pieces(self) -> list[str]:
        """The pieces of all parts."""
        return list(dict.fromkeys(p for part in self.parts.values() for p in part.pieces()))
