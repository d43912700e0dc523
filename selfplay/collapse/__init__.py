"""The watch on collapse: rules over the figures of metrics.jsonl, and what follows when one fires.

Self-play can get better at playing itself and worse at everything else. Its own reward does not
tell, so the rules watch what does: the reward against fixed opponents beside it, surprisal,
completion length, invalid moves, duplicates.
"""

from collections.abc import Mapping
from typing import Any

from selfplay.collapse.monitor import CollapseMonitor
from selfplay.config.instantiate import TARGET, build
from selfplay.errors import ConfigError

__all__ = ["CollapseMonitor", "validate"]


def validate(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a watch that could not be, or whose response has nobody to turn to."""
    watch: CollapseMonitor = build(config["collapse"], where="collapse")
    if not watch.response.needs_league:
        return
    league, kind = config["league"], type(watch.response).__name__
    if TARGET not in league:
        raise ConfigError(f"collapse.response: {kind} needs a league; choose league=anchors")
    if league.get("anchors") == [] or not config["population"].get("opponents"):
        raise ConfigError(
            f"collapse.response: {kind} needs anchors in the league; name some in "
            "population.opponents, and leave league.anchors null"
        )
