"""Checks of the default action, which replaces each judged move of a counterfactual study."""

from collections.abc import Iterator, Sequence

from selfplay.arena import Arena
from selfplay.credit.replay import stages_of
from selfplay.errors import ConfigError, nearest
from selfplay.rollout.rollout import AgentSpec
from selfplay.study.matches import StudyMatches
from selfplay.types import Episode, InvalidAction, Observation, Status, role_of


def default_action(agent_specs: Sequence[AgentSpec], default: str) -> str:
    """Return the action that the judged roles read in the text `default`.

    Raises ConfigError if they read none, or different ones, or if their moves depend on more than
    the observation and one completion.
    """
    found: dict[str, str] = {}
    for agent_spec in agent_specs:
        name = type(agent_spec.role).__name__
        if agent_spec.role.memory != "none":
            raise ConfigError(
                f"counterfactual: the role {name} has memory={agent_spec.role.memory}, so prompts "
                "contain more than the observation; use roles with memory=none"
            )
        if agent_spec.role.tools is not None:
            raise ConfigError(
                f"counterfactual: the role {name} has tools, so its moves depend on more than one "
                "completion; use roles with tools=null"
            )
        try:
            found.setdefault(agent_spec.role.parse(default), name)
        except InvalidAction as reason:
            raise ConfigError(
                f"--default {default}: {name} reads no action in it: {reason}"
            ) from None
    if len(found) > 1:
        (one, first), (two, second) = list(found.items())[:2]
        raise ConfigError(
            f"--default {default}: {first} reads {one!r} in it and {second} {two!r}; judge one "
            "role with --role"
        )
    return next(iter(found), default)


def refuse_never_legal(
    games: StudyMatches, episodes: Sequence[Episode], roles: Sequence[str], default: str
) -> None:
    """Raise ConfigError if every view lists its legal moves and the default is never legal."""
    known: set[str] = set()
    for episode in [each for each in episodes if each.status is not Status.FAILED]:
        for agent, seen in _views(games.arena(), episode):
            if role_of(agent) in roles:
                legal = seen.fields.get("legal")
                if not legal or default in legal:
                    return
                known |= set(legal)
    if known:
        raise ConfigError(f"--default {default}: never legal here; {nearest(default, known)}")


def _views(arena: Arena, episode: Episode) -> Iterator[tuple[str, Observation]]:
    """Yield (agent, observation) of every turn in order, by playing the recorded moves again."""
    arena.begin(episode.task, episode.seed)
    for actions in stages_of(episode):
        yield from ((agent, arena.view(agent)) for agent in actions)
        arena.play_stage(actions)
