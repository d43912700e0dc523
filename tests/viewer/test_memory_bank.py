"""Tests of the time line of a memory bank, which must agree with the bank of the arena."""

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from arenas.memory.arena import EXTRACTOR, MANAGER, SUMMARIZER, raw_env
from selfplay.types import Task
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.memory_bank import time_line
from selfplay.viewer.server import application
from tests.helpers.builders import episode as made
from tests.helpers.builders import turn
from tests.helpers.memory_episode import FACTS, PAYLOAD, played
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import five_episodes, write


def test_the_time_line_is_the_banks_own_journal() -> None:
    episode, arena = played()
    line = time_line(episode)
    assert line is not None
    events = [(m.event, m.entry) for moments in line.moments for m in moments]
    assert events == [
        ("EARLIER", "0"),
        ("ADD", "1"),
        ("UPDATE", "0"),
        ("ADD", "2.1"),
        ("DELETE", "1"),
        ("REFUSED", ""),
        ("NOOP", ""),
        ("UPDATE", "0"),
    ]
    alive = {life.entry: life for life in line.lives if life.end is None}
    assert {name: life.text for name, life in alive.items()} == {
        name: entry.text for name, entry in arena.bank.entries.items()
    }
    for name, entry in arena.bank.entries.items():
        assert tuple(moment.before for moment in alive[name].moments[1:]) == entry.old
    (gone,) = (life for life in line.lives if life.end is not None)
    assert gone.entry == "1" and gone.end == 3
    assert alive["0"].used == ["answer_agent_0 (correct)"] and not alive["2.1"].used
    assert line.moments[4][0].reason == "unknown_id"


def test_the_facts_of_an_extractor_are_those_of_the_time_line() -> None:
    arena = raw_env(extractor=True)
    task = Task(id="t", payload=PAYLOAD)
    arena.begin(task, seed=0)
    written = iter(('["a",  "b  c", "a"]', "no list", "[]", '["d"]', "[]", "[]"))
    turns = []
    while EXTRACTOR in arena.stage or MANAGER in arena.stage:
        (agent,) = arena.stage
        action = '{"event": "ADD"}' if agent == MANAGER else f'{{"facts": {next(written)}}}'
        arena.play_stage({agent: action})
        turns.append(turn(agent, action=action, info=dict(arena.notes[agent])))
    line = time_line(made(*turns, task=task))
    assert line is not None
    assert [life.text for life in line.lives] == ["one", "a", "b c", "d"]
    assert {life.entry: life.text for life in line.lives} == {
        name: entry.text for name, entry in arena.bank.entries.items()
    }
    assert [fact["time"] for fact in line.facts] == ["day 0", "day 1", "day 1", "day 4"]


def test_the_summaries_of_a_summarizer_are_the_facts_of_the_time_line() -> None:
    arena = raw_env(summarizer=True)
    said = [{"text": text, "speaker": "Ann", "time": "day 1"} for text in ("a", "b")]
    later = {"text": "c", "speaker": "Ann", "time": "day 2"}
    payload = {"facts": [*said, later], "questions": PAYLOAD["questions"]}
    arena.begin(Task(id="t", payload=payload), seed=0)
    actions = (
        '{"extracted_memories": [{"summary": "a  and b", "reference": [0, 1]},'
        ' {"summary": "a", "reference": [0]}, {"summary": "a", "reference": [1]}]}',
        '{"event": "ADD"}',
        '{"event": "ADD"}',
        '{"extracted_memories": [{"summary": "c", "reference": [0]}]}',
        '{"event": "UPDATE", "id": "0", "text": "a, b and c"}',
    )
    turns = []
    for action in actions:
        (agent,) = arena.stage
        arena.play_stage({agent: action})
        turns.append(turn(agent, action=action, info=dict(arena.notes[agent])))
    line = time_line(made(*turns, task=Task(id="t", payload=payload)))
    assert line is not None
    assert [(fact["text"], fact["time"]) for fact in line.facts] == [
        ("a and b", "day 1"),
        ("a", "day 1"),
        ("c", "day 2"),
    ]
    assert {life.entry: life.text for life in line.lives} == {
        name: entry.text for name, entry in arena.bank.entries.items()
    }


def test_a_part_of_a_mixture_has_its_time_line_too() -> None:
    episode, _ = played()
    task = Task(id="m/t", payload={"arena": "m", "task": {"id": "t", "payload": PAYLOAD}})
    turns = [turn(f"m_{t.agent}", action=t.action, info=t.info) for t in episode.turns]
    alone, mixed = time_line(episode), time_line(made(*turns, task=task))
    assert alone is not None and mixed is not None and mixed.moments == alone.moments
    assert mixed.lives[0].used == ["m_answer_agent_0 (correct)"]


@pytest.mark.parametrize(
    "action",
    [
        *(None, "", "[" * 100_000, "7", '{"event": 7}', '{"memory": 7}', HOSTILE),
        *('[{"event": "UPDATE"}, 3]', '{"event": "UPDATE", "id": "never"}'),
        '{"event": "DELETE", "id": "never"}',
    ],
)
@pytest.mark.parametrize("verdict", ["add", "not_json"])
def test_no_record_breaks_the_time_line(action: Any, verdict: str) -> None:
    managed = turn(MANAGER, action=action, info={"verdict": verdict})
    answered = turn("answer_agent_0", action=action)
    extracted = turn(EXTRACTOR, action=action, info={"verdict": "facts"})
    lists = turn(EXTRACTOR, action='{"facts": [7, "x"]}', info={"verdict": "facts"})
    listed = '{"extracted_memories": [7, {}, {"summary": 7}, {"summary": "x"}]}'
    summarized = [turn(SUMMARIZER, action=a, info={"verdict": "facts"}) for a in (action, listed)]
    read: tuple[dict[str, Any], ...] = (PAYLOAD, {"facts": [3, None]}, {"facts": [{"text": 7}]})
    for payload in read:
        task = Task(id="t", payload=payload)
        assert time_line(made(*[managed] * 9, answered, task=task)) is not None
        assert time_line(made(extracted, lists, managed, answered, task=task)) is not None
        assert time_line(made(*summarized, managed, answered, task=task)) is not None
    none: tuple[dict[str, Any], ...] = ({}, {"facts": 7}, {"task": 7}, {"facts": [], "earlier": 7})
    for payload in none:
        assert time_line(made(managed, task=Task(id="t", payload=payload))) is None


def test_the_page_of_an_episode_has_the_time_line(tmp_path: Path) -> None:
    episode, _ = played()
    run = five_episodes(tmp_path / "made")
    hostile = {**PAYLOAD, "facts": [{**fact, "text": HOSTILE} for fact in FACTS[1:]]}
    other = made(*episode.turns, task=Task(id="t", payload=hostile))
    write(run, 3, [episode, other])
    with TestClient(
        application(RunCatalogue([run]), cache=tmp_path), base_url="http://127.0.0.1"
    ) as client:
        page = client.get("/run/made/episodes/3/1").text
        assert "The memory bank" in page and "refused, unknown_id" in page
        assert page.count("<circle") == 5 and page.count("<path d=") == 1
        assert "facts 0 → 2 → 6" in page and "facts 1 → 3, deleted" in page
        bad = client.get("/run/made/episodes/3/2").text
        assert len(re.findall(r"<script\b", bad)) == 1 and "<img" not in bad
        assert "The memory bank" not in client.get("/run/made/episodes/1/1").text
