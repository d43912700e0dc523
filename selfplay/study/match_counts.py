"""Counts over the episodes of a study: how they ended, who moved and which metrics existed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from selfplay.errors import ConfigError, nearest
from selfplay.types import Episode, Status


@dataclass(kw_only=True)
class MatchCounts:
    """Counts over all episodes of a study."""

    episodes: int = 0
    """Number of episodes."""
    failed: int = 0
    """Number of failed episodes."""
    truncated: int = 0
    """Number of truncated episodes."""
    turns: int = 0
    """Number of moves: turns that are no tool calls."""
    unparsed: int = 0
    """Number of moves without a valid action."""
    movers: set[str] = field(default_factory=set)
    """Agents that have moved at least once."""
    metrics: set[str] = field(default_factory=set)
    """Metrics that at least one episode had."""
    lacking: set[str] = field(default_factory=set)
    """Requested metrics that a finished episode lacked."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Requested metric to the number of truncated episodes that lack it and are left out."""

    def count(self, episodes: Sequence[Episode]) -> None:
        """Add episodes to the counts."""
        turns = [turn for episode in episodes for turn in episode.moves()]
        self.episodes += len(episodes)
        self.failed += sum(episode.status is Status.FAILED for episode in episodes)
        self.truncated += sum(episode.status is Status.TRUNCATED for episode in episodes)
        self.turns += len(turns)
        self.unparsed += sum(turn.invalid for turn in turns)
        self.movers |= {turn.agent for turn in turns}

    def ask(self, metric: str, episodes: Sequence[Episode]) -> None:
        """Record that a metric is requested, and which metrics these episodes have."""
        self.metrics |= {name for episode in episodes for name in episode.metrics}
        finished = [episode for episode in episodes if episode.status is Status.FINISHED]
        if any(metric not in episode.metrics for episode in finished):
            self.lacking.add(metric)

    def check_measured(self, metric: str, *, others: Sequence[str]) -> None:
        """Raise ConfigError if the metric was requested and no episode had it.

        `others` are metrics to name in the error, besides those of the episodes.
        """
        if metric in self.lacking - self.metrics:
            raise ConfigError(
                f"--metric {metric}: no episode has it; {nearest(metric, [*self.metrics, *others])}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the fractions of failed and truncated episodes, and of turns without action.

        `truncated_left_out` is there if a metric leaves out truncated episodes.
        """
        left_out = {"truncated_left_out": dict(self.left_out)} if self.left_out else {}
        return {
            "failed_episodes": self.failed / max(self.episodes, 1),
            "truncated_episodes": self.truncated / max(self.episodes, 1),
            "turns_without_action": self.unparsed / max(self.turns, 1),
            **left_out,
        }
