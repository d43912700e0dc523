"""Matches: one seat against all others, and what came of them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from selfplay.types import Episode, Status

Result: TypeAlias = Literal["won", "drawn", "lost"]


@dataclass(frozen=True, kw_only=True)
class Match:
    """Somebody in one seat, an opponent in all the others."""

    seat: str
    """The agent whose result is asked for."""
    opponent: str
    """The policy that plays the others."""
    seats: Sequence[str]
    """All agents that take part."""

    @property
    def policy_map(self) -> dict[str, str]:
        """As a job has it: `seat` is left to its role's own policy."""
        return {agent: self.opponent for agent in self.seats if agent != self.seat}


def result(episode: Episode, seat: str, seats: Sequence[str]) -> Result | None:
    """How it came out for one seat: won with more than any other was paid, lost with less than one.

    None for an episode that failed.
    """
    if episode.status is Status.FAILED:
        return None
    paid = returns(episode)
    best = max(paid.get(agent, 0.0) for agent in seats if agent != seat)
    own = paid.get(seat, 0.0)
    return "won" if own > best else "drawn" if own == best else "lost"


def returns(episode: Episode) -> dict[str, float]:
    """What each agent was paid on its turns; an agent that never moved is not there."""
    paid: dict[str, float] = defaultdict(float)
    for turn in episode.turns:
        paid[turn.agent] += turn.reward
    return paid


def figures(matches: Sequence[Match], episodes: Sequence[Episode]) -> dict[str, float]:
    """`versus/<opponent>/won`, `drawn`, `lost`: shares; `return`: the mean; all also by seat.

    A failed episode counts as lost, with the lowest return of all: nothing gets better by failing.
    There is no `return` where all of them failed.
    """
    both = list(zip(matches, episodes, strict=True))
    results = [result(episode, match.seat, match.seats) for match, episode in both]
    got = [returns(episode).get(match.seat, 0.0) for match, episode in both]
    lowest = min((value for value, came in zip(got, results, strict=True) if came), default=None)
    values: Mapping[str, list[float]] = defaultdict(list)
    for (match, _), came, value in zip(both, results, got, strict=True):
        here = f"versus/{match.opponent}"
        for place in (here, f"{here}/{match.seat}"):
            for name in ("won", "drawn", "lost"):
                values[f"{place}/{name}"].append(float((came or "lost") == name))
            if lowest is not None:
                values[f"{place}/return"].append(value if came else lowest)
    return {name: sum(found) / len(found) for name, found in values.items()}
