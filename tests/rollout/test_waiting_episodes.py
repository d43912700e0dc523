"""Tests of episodes that wait for tools: others begin meanwhile, up to a bound."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.tools import Tool, Toolbox
from selfplay.types import Action, Completion, Episode, Observation, Request, Status, Task

CALL = "<waiting>x</waiting>"


class Moves(Arena):
    """A game in which two agents move at the same time, twice."""

    name = "moves_v0"
    roles = {"player": 2}

    def setup(self, task: Task, rng: Random) -> None:
        self.made = 0

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        return Observation(text=f"{agent}, move {self.made}")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.made += 1
        for agent, action in actions.items():
            self.pay(agent, float(action == "done"))
        if self.made == 2:
            self.finish()


class Waiting(Tool):
    """A tool that waits in the function `wait` of the test, then answers."""

    seconds = 20.0

    def __init__(self, wait: object = None) -> None:
        self.wait = wait

    def call(self, text: str) -> str:  # type: ignore[override]
        if callable(self.wait):
            self.wait()
        return "waited"


class Counting(ScriptedEngine):
    """An engine that records the largest number of requests in flight."""

    def __init__(self, calls: Mapping[str, int]) -> None:
        super().__init__({"p": self.answer})
        self.calls = calls
        self.seeds: dict[int, int] = {}
        self.most = 0

    def answer(self, agent: str, observation: Observation, rng: Random) -> str:
        done = len(observation.fields.get("tool_results", ()))
        return CALL if done < self.calls[agent] else "done"

    def add(self, request: Request) -> None:
        self.seeds[request.id] = request.seed
        super().add(request)

    def step(self) -> list[Completion]:
        self.most = max(self.most, len(self.seeds))
        found = super().step()
        for each in found:
            del self.seeds[each.id]
        return found


def played(
    tool: Waiting,
    *,
    count: int,
    arena: type[Arena] = Moves,
    calls: tuple[int, int] = (1, 1),
    **limits: Any,
) -> tuple[list[Episode], Counting]:
    engine = Counting({"player_0": calls[0], "player_1": calls[1]})
    role = Role(tools=Toolbox(tools={"waiting": tool}))
    agent_spec = AgentSpec(role=role, policy="p", renderer=ByteRenderer(), max_tokens=100)
    rollout = Rollout(
        arena=arena,
        agent_specs={"player": agent_spec},
        engines={"p": engine},
        settings=RolloutSettings(**limits),
    )
    specs = [EpisodeSpec(task=Task(id="t"), seed=seed) for seed in range(count)]
    return rollout.run(specs), engine


@pytest.mark.parametrize("max_waiting", [0, 4, 100])
def test_episodes_begin_while_all_live_ones_wait_up_to_the_bound(max_waiting: int) -> None:
    live: list[Moves] = []
    bound = min(10, 2 + max_waiting)
    reached = threading.Event()

    class Counted(Moves):
        def begin(self, task: Task, seed: int) -> None:
            super().begin(task, seed)
            live.append(self)
            now = sum(not each.finished for each in live)
            assert now <= bound
            if now == bound:
                reached.set()

    def wait() -> None:
        assert reached.wait(10.0), "the bound was not reached while all episodes waited"

    episodes, engine = played(
        Waiting(wait), count=10, arena=Counted, max_live=2, max_waiting=max_waiting
    )
    assert {each.status for each in episodes} == {Status.FINISHED}, episodes[0].error
    assert not any(call.error for each in episodes for t in each.turns for call in t.tool_calls)
    assert all(sum(turn.reward for turn in each.turns) == 4.0 for each in episodes)
    assert engine.most <= 2 * 2


@pytest.mark.parametrize("calls", [(1, 1), (3, 0), (0, 2)])
def test_results_do_not_depend_on_the_limits_or_on_the_time_of_tools(
    calls: tuple[int, int],
) -> None:
    def pause() -> None:
        time.sleep(random.choice((0.0, 0.0, 0.003)))

    wanted, _ = played(Waiting(), count=12, calls=calls, max_live=100)
    for max_live, max_waiting in ((1, 0), (1, 3), (3, 2), (4, 100)):
        found, engine = played(
            Waiting(pause), count=12, calls=calls, max_live=max_live, max_waiting=max_waiting
        )
        assert found == wanted
        assert engine.most <= 2 * max_live
