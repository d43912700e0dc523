"""Tests of agents that enter during an episode: they are declared, added, paid and recorded."""

import pickle
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from pettingzoo.test import api_test, seed_test

from arenas.mixture.arena import Mixture, routed
from selfplay.arena import Arena
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.types import Action, Observation, Status, Task

TASK = Task(id="t")


class Guests(Arena):
    """A game whose host adds one guest per move or ends the game; each guest moves once.

    A guest is paid 0.5 when it is added. The end pays 1 to each agent in the episode.
    """

    name = "guests_v0"
    roles = {"host": 1, "guest": 2}

    def starting_agents(self, task: Task) -> Sequence[str]:
        return ["host_0"]

    def setup(self, task: Task, rng: Random) -> None:
        self.heard: list[str] = []

    def acting(self) -> Sequence[str]:
        new = [agent for agent in self.agents if agent not in (*self.heard, "host_0")]
        return new or ["host_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text=f"{agent}, {len(self.heard)} guests were heard")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        for agent, action in actions.items():
            if agent != "host_0":
                self.heard.append(agent)
            elif action and action.startswith("guest"):
                self.add(action)
                self.pay(action, 0.5)  # before its first move
            else:
                for each in self.agents:
                    self.pay(each, 1.0)
                self.finish()


def begun() -> Guests:
    arena = Guests()
    arena.begin(TASK, seed=1)
    return arena


def test_pettingzoo_conformance() -> None:
    api_test(Guests(), num_cycles=30)
    seed_test(Guests, num_cycles=10)


def test_declared_agents_enter_an_episode_one_by_one() -> None:
    arena = begun()
    assert arena.possible_agents == ["host_0", "guest_0", "guest_1"]
    assert arena.agents == ["host_0"] and arena.to_come() == ["guest_0", "guest_1"]
    assert arena.play_stage({"host_0": "guest_1"}) == {"host_0": 0.0, "guest_1": 0.5}
    assert arena.stage == ("guest_1",) and arena.agents == ["host_0", "guest_1"]
    assert arena.to_come() == ["guest_0"]
    twin = pickle.loads(pickle.dumps(arena.fork()))
    for each in (arena, twin):
        each.play_stage({"guest_1": "hello"})
        assert each.play_stage({"host_0": "end"}) == {"host_0": 1.0, "guest_1": 1.0}
    again = Guests()
    again.begin(TASK, 1)
    again.replay(arena.history)
    assert again.paid == twin.paid == arena.paid == {"host_0": 1.0, "guest_1": 1.5}
    again.begin(TASK, 1)
    assert again.agents == ["host_0"], "the next episode has only the starting agents again"


def test_an_added_agent_moves_next_in_pettingzoo() -> None:
    arena = begun()
    arena.step("guest_0")
    assert arena.agent_selection == "guest_0" and "guest_0" in arena.rewards
    assert arena.last()[1] == pytest.approx(0.5) and not arena.terminations["guest_0"]
    arena.step("hello")
    arena.step("end")
    assert arena.terminations == {"host_0": True, "guest_0": True}


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("guest_2", r"add\('guest_2'\): not declared; roles holds the largest number"),
        ("host_0", r"add\('host_0'\): it is in the episode already"),
    ],
)
def test_adding_a_wrong_agent_is_a_one_line_error(agent: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        begun().add(agent)
    assert "\n" not in str(refused.value)


def test_an_agent_that_has_not_entered_cannot_act_be_paid_or_get_notes() -> None:
    arena = begun()
    arena.acting = lambda: ["guest_0"]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"not agents of the episode; call add\('guest_0'\) first"):
        arena.play_stage({"host_0": "guest_1"})
    for refused in (
        lambda: begun().pay("guest_0", 1.0),
        lambda: begun().leave_out("guest_0"),
        lambda: begun().note("guest_0", verdict="late"),
    ):
        with pytest.raises(KeyError, match="no agent 'guest_0'"):
            refused()


def rollout(arena: Any, script: Any) -> Rollout:
    engine, renderer = ScriptedEngine({"p": script, "q": script}), ByteRenderer()
    agent_specs = {
        role: AgentSpec(role=Role(), policy="p", renderer=renderer) for role in arena().roles
    }
    return Rollout(
        arena=arena,
        agent_specs=agent_specs,
        engines=dict.fromkeys("pq", engine),
        renderers=dict.fromkeys("pq", renderer),
    )


def host(agent: str, seen: Observation, rng: Any) -> str:
    if "host" not in agent:
        return "hello"
    return "guest_1" if seen.text.endswith("0 guests were heard") else "end"


def test_policy_map_may_name_an_agent_that_enters_late_or_never() -> None:
    spec = EpisodeSpec(task=TASK, seed=1, policy_map={"guest_0": "q", "guest_1": "q"})
    (episode,) = rollout(Guests, host).run([spec])
    assert episode.status is Status.FINISHED
    assert [(t.agent, t.policy) for t in episode.turns] == [
        ("host_0", "p"),
        ("guest_1", "q"),
        ("host_0", "p"),
    ]
    # The pay of a guest in stages in which it does not move is recorded in other_pay.
    assert episode.other_pay["guest_1"] and "guest_0" not in episode.other_pay
    with pytest.raises(ConfigError, match="guest_7"):
        rollout(Guests, host).run([EpisodeSpec(task=TASK, seed=1, policy_map={"guest_7": "q"})])


def test_in_a_mixture_an_agent_enters_late_too() -> None:
    def mixed() -> Mixture:
        return Mixture(parts={"party": Guests()})

    spec = EpisodeSpec(task=routed("party", TASK), seed=1)
    (episode,) = rollout(mixed, host).run([spec])
    assert episode.status is Status.FINISHED, episode.error
    assert [t.agent for t in episode.turns] == ["party_host_0", "party_guest_1", "party_host_0"]
    arena = mixed()
    arena.begin(routed("party", TASK), 1)
    assert arena.agents == ["party_host_0"]
    assert arena.to_come() == ["party_guest_0", "party_guest_1"]
