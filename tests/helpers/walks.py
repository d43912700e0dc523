"""Groups of a scripted walker, and a curriculum that records the groups that it observes."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from selfplay.arena import Arena
from selfplay.curriculum import Curriculum
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.types import Action, Completion, Group, Observation, Task


class Listed(Curriculum):
    """A curriculum with two new tasks per attempt, which records the groups that it observes."""

    def __init__(self, *, is_ready: bool = True) -> None:
        self.observed: list[tuple[int, list[str]]] = []
        self.is_ready = is_ready

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        return [Task(id=f"{step}-{attempt}-{number}") for number in range(2)]

    def observe(self, groups: Sequence[Group], step: int) -> None:
        self.observed.append((step, [group.id for group in groups]))

    def ready(self) -> bool:
        return self.is_ready

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Walk(Arena):
    """Up to `steps` steps of one walker. "stop" ends the episode, and "break" raises an error."""

    name = "walk_v0"
    roles = {"walker": 1}

    def __init__(self, steps: int = 4) -> None:
        super().__init__()
        self.steps = steps

    def setup(self, task: Task, rng: random.Random) -> None:
        self.gone = 0

    def acting(self) -> Sequence[str]:
        return ["walker_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text=f"{self.gone}")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        if actions["walker_0"] == "break":
            raise RuntimeError("broken")
        self.gone += 1
        self.pay("walker_0", float(len(actions["walker_0"] or "")))
        if self.gone == self.steps or actions["walker_0"] == "stop":
            self.finish()


class Words(ScriptedEngine):
    """An engine that says random words. `nats` has the surprisal of each token, by view."""

    def __init__(self, words: Sequence[str], nats: Mapping[str, float] | None = None) -> None:
        super().__init__({"p": lambda agent, seen, rng: rng.choice(list(words))})
        self.nats, self.seen = nats or {}, dict[int, str]()

    def add(self, request: Any) -> None:
        self.seen[request.id] = request.observation.text
        super().add(request)

    def step(self) -> list[Completion]:
        return [
            Completion(
                id=done.id,
                completion_ids=done.completion_ids,
                logprobs=(-self.nats.get(self.seen[done.id], 0.0),) * len(done.completion_ids),
                stop_reason=done.stop_reason,
                text=done.text,
            )
            for done in super().step()
        ]


def sampled(
    sampler: Any,
    *,
    words: Sequence[str] = ("a", "bb", "ccc"),
    nats: Mapping[str, float] | None = None,
    steps: int = 4,
    seed: int = 0,
) -> list[Group]:
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
    engine = Words(words, nats)
    rollout = Rollout(
        arena=lambda: Walk(steps), agent_specs={"walker": agent_spec}, engines={"p": engine}
    )
    curriculum = Listed()
    groups: list[Group] = sampler.sample(curriculum, rollout.run, step=3, seed=seed)
    assert curriculum.observed == [(3, [group.id for group in groups])]
    return groups


def forks(group: Group) -> list[tuple[int | None, int]]:
    return [(episode.branch_of, episode.shared_turns) for episode in group.episodes]
