"""Tests of a hidden-role game with talk and votes, which is written from the documentation."""

import re
from statistics import fmean
from typing import Any

import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games.opponents import random_legal
from arenas.games.random_play import RandomPlay
from selfplay.config.compose import load
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer, ChatRenderer
from selfplay.models.warmstart import WarmStart
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Observation, Status, Task
from tests.helpers.engine_requests import serving
from tests.helpers.hidden_role_game import Spy


def begun(seed: int = 0, **settings: Any) -> Spy:
    arena = Spy(**settings)
    arena.begin(Task(id="game"), seed=seed)
    return arena


def talk(arena: Spy, words: str = "hm") -> None:
    arena.play_stage(dict.fromkeys(arena.stage, words))


def vote(arena: Spy, suspect: str) -> None:
    """Let all vote for `suspect`, and `suspect` for another player."""
    other = next(agent for agent in arena.stage if agent != suspect)
    arena.play_stage({agent: other if agent == suspect else suspect for agent in arena.stage})


@pytest.mark.parametrize("players", [3, 5])
def test_conformance(players: int) -> None:
    api_test(Spy(players=players), num_cycles=50)
    seed_test(lambda: Spy(players=players), num_cycles=20)


def test_the_number_of_players_is_a_setting() -> None:
    assert len(begun(players=7).stage) == 7
    with pytest.raises(ValueError, match="at least 3 players"):
        Spy(players=2)


def test_only_the_spy_knows_the_spy() -> None:
    arena = begun()
    seen = {agent: arena.view(agent).text for agent in arena.stage}
    assert [agent for agent, text in seen.items() if "You are the spy" in text] == [arena.spy]
    others = {text for agent, text in seen.items() if agent != arena.spy}
    assert len(others) == 1 and arena.spy not in others.pop()


def test_a_player_that_is_voted_out_is_not_asked_again_and_is_paid() -> None:
    arena = begun()
    (out,) = [agent for agent in arena.stage if agent != arena.spy][:1]
    talk(arena)
    vote(arena, out)
    assert out not in arena.stage and len(arena.stage) == 4
    talk(arena)
    vote(arena, arena.spy)
    assert arena.finished and arena.paid[arena.spy] == -1 and arena.paid[out] == 1
    assert arena.metrics == {"caught": 1, "illegal_votes": 0, "days": 2}


def test_a_tie_removes_no_player_and_the_spy_wins_the_last_day() -> None:
    arena = begun(days=1)
    talk(arena)
    names = list(arena.stage)
    arena.play_stage({agent: names[(place + 1) % 5] for place, agent in enumerate(names)})
    assert arena.finished and arena.paid[arena.spy] == 1 and arena.metrics["caught"] == 0


@pytest.mark.parametrize("text", [None, "", "player_9", "\ud800", "x" * 100_000])
def test_any_text_is_handled(text: str | None) -> None:
    arena = begun(days=1)
    arena.play_stage(dict.fromkeys(arena.stage, text))
    assert len(arena.view("player_0").text) < 1000
    arena.play_stage(dict.fromkeys(arena.stage, text))
    assert arena.finished and arena.metrics["illegal_votes"] == 1


def test_a_fork_and_a_replay_are_paid_the_same() -> None:
    arena = begun()
    talk(arena)
    fork = arena.fork()
    for each in (arena, fork):
        assert isinstance(each, Spy)
        vote(each, each.spy)
    assert arena.paid == fork.paid
    arena.replay(list(arena.history))
    assert arena.paid == fork.paid


def says(agent: str, observation: Observation, rng: Any) -> str:
    return random_legal(agent, observation, rng) if observation.fields["legal"] else "not me"


def test_scripted_players_play_to_the_end() -> None:
    engines = {"script": ScriptedEngine({"script": says})}
    agent_specs = {"player": AgentSpec(role=Role(), policy="script", renderer=ByteRenderer())}
    rollout = Rollout(arena=Spy, agent_specs=agent_specs, engines=engines)
    episodes = rollout.run([EpisodeSpec(task=Task(id="game"), seed=seed) for seed in range(20)])
    assert {episode.status for episode in episodes} == {Status.FINISHED}
    assert {episode.metrics["caught"] for episode in episodes} == {0.0, 1.0}
    assert all(episode.metrics["illegal_votes"] == 0 for episode in episodes)


@pytest.mark.slow
def test_a_warm_start_of_random_play_votes_legally() -> None:
    """Use the settings of `warmstart=random_play`; takes half a minute of CPU time."""
    settings = load(["+experiment=tiny/kuhn"])["warmstart"]
    kept = ("steps", "batch", "warmup_steps", "lr", "final_lr", "model")
    source = RandomPlay(arena=Spy(), messages=["me", "not me", "player_1"])
    lines: list[str] = []
    warm = WarmStart(
        demonstrations=source,
        roles={"player": Role()},
        **{key: settings[key] for key in kept},
    )
    model, tokenizer = warm.train(lines.append)
    found = re.fullmatch(r"warm start: (\d+)% of \d+ sampled answers are legal moves", lines[-1])
    assert found is not None and int(found[1]) >= 90, lines[-1]
    renderer = ChatRenderer(tokenizer)
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=renderer, max_tokens=8)
    engines = {"p": serving({"p": model}, {"p": renderer.end_ids})}
    rollout = Rollout(arena=Spy, agent_specs={"player": agent_spec}, engines=engines)
    episodes = rollout.run(
        [EpisodeSpec(task=Task(id="game"), seed=seed) for seed in range(1000, 1020)]
    )
    assert {episode.status for episode in episodes} == {Status.FINISHED}
    assert fmean(episode.metrics["illegal_votes"] for episode in episodes) < 0.1
