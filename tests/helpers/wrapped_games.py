"""Whole games of wrapped envs, and the returns that the envs themselves report."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from arenas.external.base import WrappedGame
from arenas.external.pettingzoo import PettingZoo
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Episode, Task

GAME = Task(id="game")
Game = TypeVar("Game", bound=WrappedGame)


def play(
    make: Callable[[], Game], engine: Any, count: int, **seat: Any
) -> list[tuple[Episode, Game]]:
    """Play whole games between agents of one policy; return each episode with its arena."""
    arenas: list[Game] = []

    def fresh() -> Game:
        arenas.append(make())
        return arenas[-1]

    settings: dict[str, Any] = {"renderer": ByteRenderer(), **seat}
    agent_specs = {"player": AgentSpec(role=Role(), policy="p", **settings)}
    rollout = Rollout(arena=fresh, agent_specs=agent_specs, engines={"p": engine})
    episodes = rollout.run([EpisodeSpec(task=GAME, seed=seed) for seed in range(count)])
    return list(zip(episodes, arenas, strict=True))


def own_returns(arena: PettingZoo, made: Any) -> dict[str, float]:
    """Return the env's own returns for the same moves, played as in PettingZoo's documentation."""
    moves = iter([move for move in arena.applied if move is not None])
    returns: dict[str, float] = defaultdict(float)
    made.reset(seed=arena.env_seed)
    for agent in made.agent_iter():
        seen, reward, terminated, truncated, info = made.last()
        returns[agent] += reward
        move = None if terminated or truncated else next(moves)
        if move is not None:
            mask = seen["action_mask"] if isinstance(seen, dict) else info.get("action_mask")
            assert mask is None or mask[move] == 1, "an illegal move reached the env"
        made.step(move)
    assert next(moves, None) is None, "the env ended before the arena did"
    return {arena._ours[agent]: value for agent, value in returns.items()}


def recorded_returns(episode: Episode) -> dict[str, float]:
    """Return the sum of the rewards of each agent's turns."""
    paid: dict[str, float] = defaultdict(float)
    for turn in episode.turns:
        paid[turn.agent] += turn.reward
    return dict(paid)
