"""Matches: one agent against the same opponent in all other seats, and the results."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from selfplay.credit.base import pay_by_agent
from selfplay.types import Episode, Status

Result: TypeAlias = Literal["won", "drawn", "lost"]


@dataclass(frozen=True, kw_only=True)
class Match:
    """One agent with its role's own policy, and an opponent in all other seats."""

    seat: str
    """The agent whose result counts."""
    opponent: str
    """Name of the policy of all other agents."""
    seats: Sequence[str]
    """All agents that take part."""

    @property
    def policy_map(self) -> dict[str, str]:
        """Agent to policy, for `EpisodeSpec`; `seat` is missing because its role decides."""
        return {agent: self.opponent for agent in self.seats if agent != self.seat}


def result(episode: Episode, seat: str, seats: Sequence[str]) -> Result | None:
    """Return the result of an episode for one agent; None if the episode failed.

    The agent has won if its return is above the largest return of the other agents in `seats`, has
    drawn if both are equal except for rounding, and has lost otherwise.
    """
    if episode.status is Status.FAILED:
        return None
    paid = pay_by_agent(episode)
    best = max(paid.get(agent, 0.0) for agent in seats if agent != seat)
    own = paid.get(seat, 0.0)
    if abs(own - best) <= 1e-12 * max(1.0, abs(own), abs(best)):
        return "drawn"
    return "won" if own > best else "lost"


def match_metrics(matches: Sequence[Match], episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the metrics of matches, for each opponent and for each opponent and seat.

    `versus/<opponent>/won`, `drawn` and `lost` are fractions of the episodes; `return` is the mean
    return of the agent. The metrics of a seat are under `versus/<opponent>/<seat>/`. A failed
    episode counts as lost, with the lowest return of the episodes that did not fail, so that a
    failure never improves a metric. If all episodes failed, there are no metrics.

    Args:
        matches: The match of each episode.
        episodes: The episodes, in the order of `matches`.
    """
    pairs = list(zip(matches, episodes, strict=True))
    results = [result(episode, match.seat, match.seats) for match, episode in pairs]
    gains = [pay_by_agent(episode).get(match.seat, 0.0) for match, episode in pairs]
    known = [gain for gain, came in zip(gains, results, strict=True) if came]
    if not known:
        return {}
    lowest = min(known)
    values: Mapping[str, list[float]] = defaultdict(list)
    for (match, _), came, gain in zip(pairs, results, gains, strict=True):
        prefix = f"versus/{match.opponent}"
        for path in (prefix, f"{prefix}/{match.seat}"):
            for name in ("won", "drawn", "lost"):
                values[f"{path}/{name}"].append(float((came or "lost") == name))
            values[f"{path}/return"].append(gain if came else lowest)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
