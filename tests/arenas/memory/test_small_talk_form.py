"""Tests of demonstrations of the form of operations and answers in plain English."""

import json
from collections import Counter
from itertools import islice
from random import Random
from typing import Any

import pytest

from arenas.memory.arena import raw_env
from arenas.memory.dialogues import UNKNOWN
from arenas.memory.small_talk import CHATTER, PEOPLE, TOPICS, SmallTalkReader, small_talk, stated
from arenas.memory.small_talk_form import SmallTalkForm, any_answer, any_operation
from roles.answer_agent import AnswerAgent
from roles.memory_manager import MemoryManager
from selfplay.types import Demonstration

ARENA = {"capacity": 2, "answer_agents": 2}
ROLES = {
    "memory_manager": MemoryManager(style="sentence", form="words"),
    "answer_agent": AnswerAgent(style="sentence", marker="It is"),
}


def shown(count: int) -> list[Demonstration]:
    source = SmallTalkForm(arena=raw_env(**ARENA), tasks=small_talk(count=60))
    return list(islice(source.stream(Random(0), 0.0), count))


def test_completions_parse_and_both_roles_are_shown() -> None:
    found = shown(600)
    for each in found:
        ROLES[each.role].parse(each.completion)
    # A dialogue shows two answers, an operation without memories and mostly one with memories.
    seen = Counter((each.role, bool(each.observation.fields["memories"])) for each in found)
    assert seen["memory_manager", False] == pytest.approx(160, abs=20)
    assert seen["memory_manager", True] == pytest.approx(110, abs=25)
    assert min(seen.values()) > 0 and len(seen) == 4


def test_operations_and_answers_are_random_choices() -> None:
    rng = Random(0)
    events = Counter(any_operation(["3", "4"], rng) for _ in range(4000))
    expected = {("ADD", ""): 1000, ("NOOP", ""): 1000}
    expected |= {(event, name): 500 for event in ("UPDATE", "DELETE") for name in "34"}
    assert events.keys() == expected.keys()
    for each, count in expected.items():
        assert abs(events[each] - count) < 4.5 * (count * (1 - count / 4000)) ** 0.5
    assert {any_operation([], rng) for _ in range(50)} == {("ADD", ""), ("NOOP", "")}
    notes = ["Anna: My pet is a cat.", "Boris: See you later!", "Anna: I live in Lima."]
    answers = Counter(any_answer(notes, rng) for _ in range(4000))
    assert answers.keys() == {"cat", "Lima"}
    assert abs(answers["cat"] - 2000) < 4.5 * 1000**0.5
    assert any_answer(notes[1:2], rng) == any_answer([], rng) == UNKNOWN


def test_no_held_out_text_is_demonstrated() -> None:
    topics = TOPICS["held_out"].values()
    values = {value for topic in topics for value in topic.values}
    found = {line for each in shown(1200) for line in each.observation.text.split("\n")}
    said = [line.partition("] ")[2] or line for line in found]
    people = {line.partition(": ")[0] for line in said if ": " in line}
    assert people and people <= set(PEOPLE["train"])
    assert not any(line.partition(": ")[2] in CHATTER["held_out"] for line in said)
    assert not {fact[2] for line in said if (fact := stated(line))} & values


def test_an_operation_in_words_is_what_the_arena_applies() -> None:
    arena = raw_env(**ARENA)
    (task,) = small_talk(count=1, chatter=0, seed=2)
    arena.begin(task, seed=0)
    role = ROLES["memory_manager"]
    arena.play_stage({"memory_manager_0": role.parse("ADD")})
    assert [entry.text for entry in arena.bank.entries.values()] == [
        arena.task.payload["facts"][0]["text"]
    ]
    assert json.loads(str(role.parse(" DELETE 0\n"))) == {"event": "DELETE", "id": "0"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": []}, "demonstrations need dialogues"),
        ({"arena": raw_env(reader=SmallTalkReader())}, "an arena without a reader"),
        ({"form": "It is."}, "does not contain"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SmallTalkForm(**{"arena": raw_env(), "tasks": small_talk(count=1), **settings})
