"""What a study has played: how it ended, who moved, and which metrics it had."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from selfplay.errors import ConfigError, nearest
from selfplay.types import Episode, Status

RETURN = "return"
"""The metric that every arena has: the mean over its agents of all that they were paid."""


@dataclass(kw_only=True)
class Tally:
    """Counts over all episodes of a study."""

    episodes: int = 0
    """How many."""
    failed: int = 0
    """How many of them failed."""
    truncated: int = 0
    """How many were cut off."""
    turns: int = 0
    """Turns of all."""
    unparsed: int = 0
    """Turns that held no action."""
    movers: set[str] = field(default_factory=set)
    """Agents that have moved."""
    metrics: set[str] = field(default_factory=set)
    """Metrics that an episode had."""
    lacking: set[str] = field(default_factory=set)
    """Metrics that were asked for and that episodes which were played to their end lacked."""

    def count(self, episodes: Sequence[Episode]) -> None:
        """Add episodes."""
        turns = [turn for episode in episodes for turn in episode.turns]
        self.episodes += len(episodes)
        self.failed += sum(episode.status is Status.FAILED for episode in episodes)
        self.truncated += sum(episode.status is Status.TRUNCATED for episode in episodes)
        self.turns += len(turns)
        self.unparsed += sum(turn.action is None for turn in turns)
        self.movers |= {turn.agent for turn in turns}

    def ask(self, metric: str, episodes: Sequence[Episode]) -> None:
        """Note that a metric is asked for, and what there is: a cell may lack it."""
        self.metrics |= {name for episode in episodes for name in episode.metrics}
        finished = [episode for episode in episodes if episode.status is Status.FINISHED]
        if any(metric not in episode.metrics for episode in finished):
            self.lacking.add(metric)

    def refuse_unmeasured(self, metric: str) -> None:
        """Raise ConfigError for a metric that was asked for and that no episode had."""
        if metric in self.lacking - self.metrics:
            raise ConfigError(
                f"--metric {metric}: no episode has it; {nearest(metric, [*self.metrics, RETURN])}"
            )

    def shares(self) -> dict[str, float]:
        """The shares of episodes and turns that went wrong."""
        return {
            "failed_episodes": self.failed / max(self.episodes, 1),
            "truncated_episodes": self.truncated / max(self.episodes, 1),
            "turns_without_action": self.unparsed / max(self.turns, 1),
        }
