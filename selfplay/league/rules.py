"""Rules: when a snapshot is added to a league, and which one is dropped when there are too many."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from selfplay.league import Table


class Adding(Protocol):
    """When a player's snapshot is added."""

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Args:
        updates: Of the player since its last snapshot.
        rates: How often it beats each of its rivals.
        """
        ...


class Every:
    """After every so many updates."""

    def __init__(self, *, updates: int) -> None:
        """`updates`: how many."""
        if updates < 1:
            raise ValueError(f"updates is at least 1, not {updates}")
        self.updates = updates

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Whether it has been so many."""
        return updates >= self.updates


class WhenBeating:
    """When the player beats every rival often enough, and in any case after `most` updates.

    AlphaStar's rule: no earlier than after `least` updates.
    """

    def __init__(self, *, least: int, most: int, above: float = 0.7) -> None:
        """`above`: the rate that counts as beating."""
        if not 1 <= least <= most:
            raise ValueError(f"least is at least 1, most at least that: {least}, {most}")
        self.least, self.most, self.above = least, most, above

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Whether it is time."""
        beats_all = bool(rates) and min(rates) > self.above
        return updates >= self.least and (beats_all or updates > self.most)


class Dropping(Protocol):
    """Which snapshots go. It bounds how many there are, and so the memory that they take."""

    most: int
    """How many may stay."""

    def dropped(self, table: Table) -> list[str]:
        """Names of those to drop, which leave `most` at the most."""
        ...


class KeepNewest:
    """The oldest go, of the player that has the most."""

    def __init__(self, *, most: int = 10) -> None:
        """`most`: how many stay, of all players together."""
        self.most = _at_least_one(most)

    def dropped(self, table: Table) -> list[str]:
        """The oldest above the limit."""
        left = list(table.snapshots)
        found = []
        while len(left) > self.most:
            counts = Counter(each.player for each in left)
            oldest = next(each for each in left if counts[each.player] == max(counts.values()))
            left.remove(oldest)
            found.append(oldest.name)
        return found


class DropBeaten:
    """Those go that the main players beat most of the time, the older first where two are alike.

    The newest snapshot stays whatever it is worth: it has hardly played.
    """

    def __init__(self, *, most: int = 10) -> None:
        """`most`: how many stay."""
        self.most = _at_least_one(most)

    def dropped(self, table: Table) -> list[str]:
        """The most beaten above the limit."""
        *older, _ = table.past() or [""]
        beaten = {
            name: min(table.payoff.rate(main, name) for main in table.mains) for name in older
        }
        ranked = sorted(older, key=lambda name: -beaten[name])
        return ranked[: max(0, len(table.snapshots) - self.most)]


def _at_least_one(most: int) -> int:
    if most < 1:
        raise ValueError(f"most is at least 1, not {most}")
    return most
