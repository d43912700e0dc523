"""Tests of the rollout with scripted policies and with arenas that fail."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfplay.engines import Engine
from selfplay.engines.scripted import ScriptedEngine, constant
from selfplay.errors import ConfigError, StalledError
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role, TaggedRole
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.types import Completion, Message, Observation, Request, Status, Task, to_json
from tests.helpers.talk import Talk, spec


def rollout(engine: Any | None = None, role: Role | None = None, **settings: Any) -> Rollout:
    agent_spec = AgentSpec(role=role or Role(), policy="p", renderer=ByteRenderer())
    engine = engine or ScriptedEngine({"p": constant("hi")})
    return Rollout(
        arena=Talk,
        agent_specs={"a": agent_spec, "b": agent_spec},
        engines={"p": engine},
        settings=RolloutSettings(**settings),
    )


def test_rewards_belong_to_the_turn_before_them() -> None:
    (episode,) = rollout().run([spec(rounds=2, early=True)])
    assert [(t.agent, round(t.reward, 9)) for t in episode.turns] == [
        ("a_0", 1.0),
        ("b_0", 0.6),
        ("b_1", 0.1),
        ("a_0", 1.0),
        ("b_0", 0.1),
        ("b_1", 0.1),
    ]
    assert episode.status is Status.FINISHED and episode.metrics == {"rounds": 2.0}
    assert episode.turns[1].info == {"seen": 1} and episode.turns[4].info == {"seen": 3}


def test_a_policy_without_an_engine_is_named() -> None:
    played = rollout()
    played.engines = {"q": ScriptedEngine({"q": constant("hi")})}
    with pytest.raises(ConfigError, match=r"^engines: none serves policy 'p'; choose from: q$"):
        played.run([spec()])


class Backwards(Engine):
    """An engine that finishes one request per step, the latest first."""

    def __init__(self) -> None:
        self.inner = ScriptedEngine({"p": constant("hi")})
        self.waiting: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> list[Completion]:
        self.inner.add(self.waiting.pop())
        return self.inner.step()


def test_turns_are_in_the_order_of_the_arena_whichever_finishes_first() -> None:
    specs = [spec(seed, rounds=2) for seed in range(5)]
    assert rollout(Backwards()).run(specs) == rollout().run(specs)


@pytest.mark.parametrize(
    ("where", "words"), [("begin", "no table"), ("advance", "oops"), ("view", "blind")]
)
def test_a_broken_arena_is_a_failed_episode_and_harms_no_other(where: str, words: str) -> None:
    broken, whole = rollout().run([spec(fails=where), spec()])
    assert broken.status is Status.FAILED and words in broken.error
    assert broken.error.isprintable() and "Error: " in broken.error
    assert re.search(r"talk\.py, line \d+\)$", broken.error)
    assert broken.metrics == {} and broken.created == ()
    assert whole.status is Status.FINISHED


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ("hello", "view('a_0') returned str, not an Observation"),
        (Observation(text=3), "view('a_0') returned an Observation whose text is int, not str"),  # type: ignore[arg-type]
    ],
)
def test_a_view_that_is_no_observation_names_the_arena(shown: Any, words: str) -> None:
    class WrongView(Talk):
        def view(self, agent: str) -> Any:
            return shown

    agent_spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
    engines = {"p": ScriptedEngine({"p": constant("hi")})}
    (episode,) = Rollout(
        arena=WrongView, agent_specs={"a": agent_spec, "b": agent_spec}, engines=engines
    ).run([spec()])
    assert episode.status is Status.FAILED
    assert words in episode.error


class Careless(Role):
    """A role that fails at the word or the observation `bad`.

    The method `method` raises an error there. With "nothing", `parse` returns None; with "text",
    `prompt` returns a text; with "no_role", `prompt` returns a message without a role.
    """

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def parse(self, text: str) -> Any:
        if self.method == "nothing" and text == "bad":
            return None
        return str(json.loads(text)) if self.method == "parse" and text == "bad" else text

    def metrics(self, text: str) -> Mapping[str, float]:
        return {"length": 1 / (self.method != "metrics" or text != "bad")}

    def prompt(self, observation: Observation) -> list[Message]:
        if self.method == "prompt" and observation.fields.get("bad"):
            raise KeyError("no such\nfield")
        if self.method == "text" and observation.fields.get("bad"):
            return observation.text  # type: ignore[return-value]
        if self.method == "no_role" and observation.fields.get("bad"):
            return [{"content": observation.text}]
        return super().prompt(observation)


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("parse", "BrokenRole: roles.b: Careless.parse raised JSONDecodeError: Expecting value"),
        ("metrics", "BrokenRole: roles.b: Careless.metrics raised ZeroDivisionError: "),
        ("prompt", "BrokenRole: roles.b: Careless.prompt raised KeyError: no such"),
        ("nothing", "BrokenRole: roles.b: Careless.parse returned NoneType, not a text; "),
        ("text", "BrokenRole: roles.b: Careless.prompt returned str, not a list of chat messages"),
        (
            "no_role",
            "BrokenRole: roles.b: Careless.prompt returned a chat message without role or ",
        ),
    ],
)
def test_a_broken_role_is_a_failed_episode_and_harms_no_other(method: str, error: str) -> None:
    class Seen(Talk):
        def view(self, agent: str) -> Observation:
            bad = self.task.id == "bad" and agent == "b_0"
            return Observation(text=str(self.turn), fields={"bad": bad})

    def words(agent: str, observation: Observation, rng: random.Random) -> str:
        return "bad" if observation.fields["bad"] else "good"

    agent_spec = AgentSpec(role=Careless(method), policy="p", renderer=ByteRenderer())
    engines = {"p": ScriptedEngine({"p": words})}
    played = Rollout(arena=Seen, agent_specs={"a": agent_spec, "b": agent_spec}, engines=engines)
    specs = [EpisodeSpec(task=Task(id=name), seed=0) for name in ("bad", "good", "bad", "good")]
    episodes = played.run(specs)
    assert [e.status for e in episodes] == [Status.FAILED, Status.FINISHED] * 2
    assert episodes[0].error.startswith(error) and episodes[0].error.isprintable()
    assert (f"{Path(__file__).name}, line " in episodes[0].error) is (
        method not in ("nothing", "text", "no_role")
    )
    assert [turn.agent for turn in episodes[0].turns] == ["a_0"]


def test_an_endless_episode_is_truncated() -> None:
    (episode,) = rollout(max_turns=10).run([spec(rounds=1000)])
    assert episode.status is Status.TRUNCATED and 10 <= len(episode.turns) < 13


def test_an_action_that_does_not_parse_is_none_with_its_reason() -> None:
    (episode,) = rollout(role=TaggedRole()).run([spec()])
    assert {(t.action, t.info["invalid"]) for t in episode.turns} == {(None, "no_action")}


def test_few_live_episodes_give_the_same_as_many() -> None:
    specs = [spec(seed, rounds=2) for seed in range(7)]
    assert rollout(max_live=1).run(specs) == rollout(max_live=100).run(specs)


def test_requests_have_seeds_of_their_own() -> None:
    seeds: list[int] = []

    class Spy(ScriptedEngine):
        def add(self, request: Request) -> None:
            seeds.append(request.seed)
            super().add(request)

    members = [EpisodeSpec(task=Task(id="t"), seed=1, member=m) for m in range(3)]
    rollout(Spy({"p": constant("x")})).run(members)
    assert len(set(seeds)) == len(seeds) == 9


def test_a_role_without_a_seat_is_refused() -> None:
    lonely = rollout()
    del lonely.agent_specs["b"]
    with pytest.raises(ConfigError, match="no specification for role 'b'"):
        lonely.run([spec()])


class Silent(Backwards):
    """An engine that takes requests and never answers."""

    def step(self) -> list[Completion]:
        return []


def test_an_engine_that_loses_requests_is_named_and_does_not_hang() -> None:
    with pytest.raises(StalledError, match=r"^rollout: no answer to 1 request.* 50 engine"):
        rollout(Silent(), patience=50).run([spec()])


class Distant(Backwards):
    """An engine that answers one request at step 70, and loses all others."""

    steps = 0

    @property
    def awaiting(self) -> bool:
        return self.steps < 70

    def step(self) -> list[Completion]:
        self.steps += 1
        return super().step() if self.steps == 70 else []


def test_steps_that_wait_for_an_answer_from_elsewhere_are_not_idle() -> None:
    engine = Distant()
    with pytest.raises(StalledError, match=r"no answer to 2 request.* 50 engine"):
        rollout(engine, patience=50).run([spec()])
    assert engine.steps == 120


class Twice(ScriptedEngine):
    """An engine that returns every completion twice."""

    def step(self) -> list[Completion]:
        return 2 * super().step()


def test_an_answer_without_a_request_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"request \d+, not in flight"):
        rollout(Twice({"p": constant("hi")})).run([spec()])


class Wild(ScriptedEngine):
    """An engine whose text has no encoding."""

    def step(self) -> list[Completion]:
        return [replace(done, text="\ud800 \x00") for done in super().step()]


def test_any_text_of_an_engine_can_be_recorded() -> None:
    (episode,) = rollout(Wild({"p": constant("")})).run([spec()])
    assert {turn.action for turn in episode.turns} == {"\ufffd \x00"}
    json.dumps(to_json(episode), ensure_ascii=False).encode()


def test_the_limit_on_live_episodes_is_kept() -> None:
    live: list[Talk] = []

    class Counted(Talk):
        def begin(self, task: Task, seed: int) -> None:
            super().begin(task, seed)
            live.append(self)
            assert sum(not arena.finished for arena in live) <= 3

    playing = rollout(max_live=3)
    playing.arena = Counted
    episodes = playing.run([spec(seed, rounds=1 + seed % 3) for seed in range(20)])
    assert {episode.status for episode in episodes} == {Status.FINISHED} and len(live) == 20


def test_no_specs_give_no_episodes() -> None:
    assert rollout().run([]) == []
