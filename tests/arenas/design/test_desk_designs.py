"""Tests of designs of a service desk: allowed designs, and plays with tools."""

import json
from random import Random
from typing import Any

import pytest
from pettingzoo.test import api_test

from arenas.design.arena import DesignedGames
from arenas.design.desk_designs import DeskDesigns
from arenas.design.space import RefusedDesign, play_task, read_design
from arenas.desk.arena import Desk
from arenas.desk.tasks import read_task
from selfplay.types import Task, ToolCall

SPACE = DeskDesigns(terse=True)
SLY = {"domain": "loans", "temper": "sly", "end": "second"}


def test_a_written_design_is_read_back_unchanged() -> None:
    for seed in range(50):
        drawn = SPACE.draw(Random(seed))
        assert read_design(SPACE, SPACE.written(drawn), longest=200) == drawn
    assert '"sly"' in SPACE.describe() and "second" in SPACE.describe()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"domain": "os"}, "unknown_domain"),
        ({"domain": ["loans"]}, "unknown_domain"),
        ({"temper": None}, "unknown_temper"),
        ({"end": 1}, "unknown_end"),
        ({"wishes": 3}, "unknown_key"),
    ],
)
def test_a_wrong_design_is_refused_with_its_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedDesign, match=reason):
        SPACE.read({**SLY, **change})


@pytest.mark.parametrize(("end", "granted"), [("first", 0), ("second", 1), ("refuse", None)])
def test_the_task_has_the_settings_of_the_design(end: str, granted: int | None) -> None:
    settings = {**SLY, "end": end}
    tasks = [SPACE.game_task(settings, Random(seed)) for seed in (1, 2)]
    assert tasks[0].id != tasks[1].id
    for task in tasks:
        desk = read_task(task)
        assert (desk.domain.name, desk.temper, desk.granted) == ("loans", "sly", granted)


def served(arena: DesignedGames, agent: str, *, obey: bool) -> str:
    """Make the calls that solve the agent's task, or none; return its move."""
    number = int(agent.rpartition("_")[2])
    desk = arena.games[number]
    assert isinstance(desk, Desk)
    asked = desk.customer.wish == desk.desk.granted
    calls = [
        ToolCall(
            name=change.name, arguments=json.dumps(dict(change.arguments)), result="", error=""
        )
        for change in (desk.desk.solution if obey and asked else ())
    ]
    assert arena.tool_state(agent, calls).keys() == desk.tables.keys()
    return arena.with_calls(agent, "ok" if calls else "no", calls)


def test_agents_serve_their_own_customers() -> None:
    arena = DesignedGames(space=SPACE, plays=4)
    arena.begin(Task(id="d", type="desk", payload={"mode": "propose"}), 0)
    arena.play_stage({"designer_0": json.dumps(SLY)})
    assert arena.possible_agents[1:] == [f"agent_{number}" for number in range(4)]
    while not arena.finished:
        arena.play_stage(
            {a: served(arena, a, obey=a in ("agent_0", "agent_2")) for a in arena.stage}
        )
    # Two of four serve the second wish; the others refuse everything.
    assert [arena.paid[f"agent_{number}"] for number in range(4)] == [1, 0, 1, 0]
    assert arena.metrics["score"] == 0.5 and arena.paid["designer_0"] == 1.0
    assert arena.created == [play_task(SPACE, SLY)]
    assert arena.created[0].type == "desk"


def test_pettingzoo_conformance() -> None:
    api_test(DesignedGames(space=SPACE, plays=2), num_cycles=20)
    api_test(DesignedGames(space=SPACE, plays=2, designers=0), num_cycles=40)


def test_settings_are_checked() -> None:
    wrong: list[dict[str, Any]] = [{"domains": []}, {"domains": ["bank"]}, {"tempers": ["calm"]}]
    for settings in wrong:
        with pytest.raises(ValueError, match="some of"):
            DeskDesigns(**settings)
