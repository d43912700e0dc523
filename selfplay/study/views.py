"""What agents saw before each of their recorded moves, by playing these again."""

from collections.abc import Iterator

from selfplay.arena import Arena
from selfplay.types import Action, Episode, Observation


def views(arena: Arena, episode: Episode) -> Iterator[tuple[str, Observation]]:
    """(agent, what it saw) of every turn, in order."""
    arena.begin(episode.task, episode.seed)
    stages: dict[int, dict[str, Action | None]] = {}
    for turn in episode.turns:
        stages.setdefault(turn.stage, {})[turn.agent] = turn.action
    for _, actions in sorted(stages.items()):
        yield from ((agent, arena.view(agent)) for agent in actions)
        arena.play(actions)
