"""AlphaStar's three kinds of players (Vinyals et al. 2019), by its released pseudocode.

A main player learns to beat everybody. A main exploiter looks for what the main players do wrong
now, a league exploiter for what everybody in the league does wrong; both begin again once what they
found stands in the league as a snapshot. Counts of updates stand in for its steps of the game.
"""

from collections.abc import Sequence
from typing import ClassVar

from selfplay.league import Chances, Table
from selfplay.league.matchmaking import Ordinary, mixed, prioritised


class MainPlayer(Ordinary):
    """Half of its games against all snapshots, the hard ones above all; the rest against itself.

    In `verify` of the games it is checked for what it has lost: a main exploiter's snapshot that
    beats it, or a snapshot of a main player that it used to beat and does not beat any more. Where
    nothing is found, and in the rest of the games, it meets a main player as it is now, or its
    snapshots as a curriculum if that one is too strong.
    """

    def __init__(
        self,
        *,
        pfsp: float = 0.5,
        verify: float = 0.15,
        exploited: float = 0.3,
        forgotten: float = 0.7,
        too_strong: float = 0.3,
    ) -> None:
        """Args:
        pfsp: Share of the games against all snapshots.
        verify: Share in which it is checked.
        exploited: A main exploiter's snapshot that it beats less often is an exploit.
        forgotten: A snapshot that it beats less often, and beat more often, is forgotten.
        too_strong: A main player that it beats no more often is too strong for it.
        """
        if min(pfsp, verify) < 0 or pfsp + verify > 1:
            raise ValueError(f"pfsp and verify are shares of the games: {pfsp}, {verify}")
        self.pfsp, self.verify = pfsp, verify
        self.exploited, self.forgotten, self.too_strong = exploited, forgotten, too_strong

    def chances(self, player: str, table: Table) -> Chances:
        """Of all that its branches lead to."""
        mains = table.mains
        everybody = prioritised(player, table.past(), table, "squared") or {player: 1.0}
        parts = [(self.pfsp, everybody)]
        for main in mains:
            equal = self._against(main, player, table)
            verified = self._verified(main, player, table) or equal
            parts.append((self.verify / len(mains), verified))
            parts.append(((1 - self.pfsp - self.verify) / len(mains), equal))
        return mixed(parts)

    def _against(self, main: str, player: str, table: Table) -> Chances:
        if table.payoff.rate(player, main) > self.too_strong:
            return {main: 1.0}
        return prioritised(player, table.past(main), table, "variance") or {main: 1.0}

    def _verified(self, main: str, player: str, table: Table) -> Chances:
        hunters = [name for name, each in table.players.items() if each.hunts]
        exploits = table.past(*hunters) if hunters else []
        if min(table.rates(player, exploits), default=1.0) < self.exploited:
            return prioritised(player, exploits, table, "squared")
        past = table.past(main)
        past = past[: before_decline(table.rates(player, past))]
        if min(table.rates(player, past), default=1.0) < self.forgotten:
            return prioritised(player, past, table, "squared")
        return {}


class MainExploiter(Ordinary):
    """Meets a main player as it is now; its snapshots as a curriculum where it hardly ever wins."""

    main: ClassVar[bool] = False
    hunts: ClassVar[bool] = True

    def __init__(self, *, hopeless: float = 0.1, reset: float = 1.0) -> None:
        """`hopeless`: a main player that it beats no more often is too strong; `reset`: the chance
        that it begins again when a snapshot of it has been made."""
        self.hopeless, self.reset = hopeless, _chance(reset)

    def chances(self, player: str, table: Table) -> Chances:
        """Of the main players, or of their snapshots."""
        mains = table.mains
        parts = []
        for main in mains:
            found: Chances = {main: 1.0}
            if table.payoff.rate(player, main) <= self.hopeless:
                found = prioritised(player, table.past(main), table, "variance") or found
            parts.append((1.0, found))
        return mixed(parts)

    def rivals(self, player: str, table: Table) -> Sequence[str]:
        """The main players as they are."""
        return table.mains


class LeagueExploiter(Ordinary):
    """Meets all snapshots, those above all that it does not beat yet."""

    main: ClassVar[bool] = False

    def __init__(self, *, reset: float = 0.25) -> None:
        """`reset`: the chance that it begins again when a snapshot of it has been made."""
        self.reset = _chance(reset)

    def chances(self, player: str, table: Table) -> Chances:
        """Of the snapshots; a main player before there is any."""
        past = prioritised(player, table.past(), table, "linear_capped")
        return past or dict.fromkeys(table.mains, 1 / len(table.mains))


def before_decline(rates: Sequence[float]) -> int:
    """How many are left, from the oldest on, without those at the end that fall steadily.

    That the newest snapshots are the hardest is as it should be; what stands before a rise was
    beaten less often than what came after it.
    """
    for last in range(len(rates) - 1, 0, -1):
        if rates[last - 1] < rates[last]:
            return last + 1
    return 0


def _chance(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"reset is a chance, not {value}")
    return value
