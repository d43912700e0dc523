"""Games of OpenSpiel, and matches of random play against an opponent, from both seats."""

from collections.abc import Callable, Sequence

from arenas.external.pettingzoo import PettingZoo
from arenas.games.opponents import random_legal
from selfplay.arena import Arena
from selfplay.engines.scripted import Script, Scripted, ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.types import Task


def openspiel_game(name: str) -> PettingZoo:
    """Return the arena that `arena=openspiel` makes for one of OpenSpiel's games."""
    return PettingZoo(
        env="arenas.external.openspiel",
        arguments={"game": name},
        render="arenas.external.openspiel.show",
        action_names="arenas.external.openspiel.name_move",
    )


def against_random(
    make: Callable[[], Arena], tasks: Sequence[Task], script: Script, samples: int
) -> dict[str, float]:
    """Return the metrics of random play against the script, which is the opponent `scripted`."""
    pool = PolicyPool(
        roles={"player": Role()},
        policy_of=lambda role: "base",
        sampling={"player": SamplingSettings(max_tokens=100, temperature=1.0)},
        rollout=RolloutSettings(max_turns=100),
    )
    pool.add("base", ScriptedEngine({"base": random_legal}), ByteRenderer(), learn=True)
    pool.add("scripted", Scripted(script=script))
    evaluation = Evaluation(
        arena=make, tasks=tasks, metrics={}, samples=samples, opponents=["scripted"]
    )
    found, episodes = evaluation.run("x", pool.rollout(make, temperature=1.0).run, seed=0)
    assert len(episodes) == 2 * len(tasks) * samples and not found["failed_episodes"]
    return found
