"""A game of two guessing players, seated with several policies."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from selfplay.arena import Arena
from selfplay.engines.scripted import ScriptedEngine, constant
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Action, Message, Observation, Task


class Guess(Arena):
    """Both players speak at once, for two rounds. The word `a` is paid 1, and any other word -1."""

    name = "guess_v0"
    roles = {"player": 2}

    def setup(self, task: Task, rng: Random) -> None:
        self.left = 2

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        return Observation(text="?", fields={"legal": ["a", "b"]})

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        for agent, action in actions.items():
            self.pay(agent, 1.0 if action == "a" else -1.0)
        self.left -= 1
        if not self.left:
            self.finish()


class Words(ByteRenderer):
    """A byte renderer whose prompts begin with a mark, so that a test sees which one made them."""

    def __init__(self, mark: int) -> None:
        self.mark = mark

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (self.mark, *super().start(messages))


def rollout(
    learning: Sequence[str] | None = ("base", "rival"), arena: type[Arena] = Guess, **role: Any
) -> Rollout:
    engine = ScriptedEngine({"base": constant("a"), "rival": constant("b"), "old": constant("bb")})
    agent_spec = AgentSpec(role=Role(**role), policy="base", renderer=Words(1), max_tokens=1)
    return Rollout(
        arena=arena,
        agent_specs={"player": agent_spec},
        engines=dict.fromkeys(("base", "rival", "old"), engine),
        renderers={"base": Words(1), "rival": Words(2), "old": Words(3)},
        learning=learning,
    )


def spec(**fields: Any) -> EpisodeSpec:
    return EpisodeSpec(task=Task(id="t"), seed=0, **fields)
