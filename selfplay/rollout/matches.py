"""Matches: one agent against the same opponent in all other seats, and the results."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

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


def result(episode: Episode, seat: str, other: str) -> Result | None:
    """Return the result of an episode for one agent against another; None if the episode failed.

    The agent has won if its return is above that of the other agent, has drawn if both are equal
    except for rounding, and has lost otherwise. In a team game a comparison with a teammate is
    always a draw.
    """
    if episode.status is Status.FAILED:
        return None
    paid = pay_by_agent(episode)
    own, theirs = paid.get(seat, 0.0), paid.get(other, 0.0)
    if abs(own - theirs) <= 1e-12 * max(1.0, abs(own), abs(theirs)):
        return "drawn"
    return "won" if own > theirs else "lost"


def match_metrics(matches: Sequence[Match], episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the metrics of matches, for each opponent and for each opponent and seat.

    `versus/<opponent>/won`, `drawn` and `lost` are means over the episodes of the fractions of the
    other seats against which the agent has this `result`, so that equal policies win as often as
    they lose, whatever the number of seats. `return` is the mean return of the agent. The metrics
    of a seat are under `versus/<opponent>/<seat>/`. A failed episode counts as lost, with the
    lowest return of the episodes that did not fail, so that a failure never improves a metric. If
    all episodes failed, there are no metrics.

    Args:
        matches: The match of each episode.
        episodes: The episodes, in the order of `matches`.
    """
    pairs = list(zip(matches, episodes, strict=True))
    gains = [
        None if episode.status is Status.FAILED else pay_by_agent(episode).get(match.seat, 0.0)
        for match, episode in pairs
    ]
    known = [gain for gain in gains if gain is not None]
    if not known:
        return {}
    lowest = min(known)
    values: Mapping[str, list[float]] = defaultdict(list)
    for (match, episode), gain in zip(pairs, gains, strict=True):
        prefix, others = f"versus/{match.opponent}", [s for s in match.seats if s != match.seat]
        results = [result(episode, match.seat, other) or "lost" for other in others]
        for path in (prefix, f"{prefix}/{match.seat}"):
            for name in get_args(Result):
                values[f"{path}/{name}"].append(results.count(name) / len(results))
            values[f"{path}/return"].append(lowest if gain is None else gain)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
