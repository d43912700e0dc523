"""Demonstrations for the memory arena: the work, and the habits that training begins with."""

import json
from collections import Counter
from itertools import islice
from random import Random
from typing import Any

import pytest

from arenas.memory.arena import raw_env
from arenas.memory.demonstrations import MemoryDemonstrations, answer, operation
from arenas.memory.dialogues import STATEMENT, TinyReader, best_operation, dialogues, values_of
from roles.answer_agent import AnswerAgent
from roles.memory_manager import MemoryManager
from selfplay.models.tiny import build_tokenizer
from selfplay.types import Demonstration, Observation

TASKS = dialogues(count=60, facts=7)


def source(**settings: Any) -> MemoryDemonstrations:
    arena = raw_env(memories=2, capacity=3)
    return MemoryDemonstrations(**{"arena": arena, "tasks": TASKS, **settings})


def shown(progress: float, count: int = 600, **settings: Any) -> list[Demonstration]:
    return list(islice(source(**settings).stream(Random(0), progress), count))


def seen(question: str, *memories: str) -> Observation:
    shown = [{"id": str(number), "text": text} for number, text in enumerate(memories)]
    return Observation(fields={"question": question, "fact": question, "memories": shown})


def test_the_work_is_what_serves_best() -> None:
    for each in shown(0.0, practice_share=1.0):
        fields = each.observation.fields
        if each.role == "memory_manager":
            assert each.completion == best_operation(fields["fact"], fields["memories"])
            continue
        said = json.loads(AnswerAgent().parse(each.completion))
        texts = {memory["id"]: memory["text"] for memory in fields["memories"]}
        assert said["answer"] == TinyReader()(fields["question"], list(texts.values()))
        assert all(said["answer"] in texts[name] for name in said["memories"])
        assert (said["answer"] == "unknown") == (said["memories"] == [])


def test_at_the_end_most_turns_have_a_bad_habit() -> None:
    events = Counter(
        json.loads(each.completion)["event"]
        for each in shown(1.0, managing={"keep": 3, "ignore": 1})
        if each.role == "memory_manager"
    )
    total = sum(events.values())
    assert set(events) == {"ADD", "NOOP"}
    assert events["ADD"] / total == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / total) ** 0.5)
    wordy = [e for e in shown(1.0, answering={"wordy": 1}) if e.role == "answer_agent"]
    assert any("It is" in each.completion for each in wordy)
    assert all("It is" in e.completion or e.completion.endswith("unknown") for e in wordy)


def test_habits_by_hand() -> None:
    two = seen("What is Ann's city?", "Bob's city is Rome.", "Ann's city is now Oslo.")
    assert answer(two, "careful", Random(0)) == "[1]\n**Answer:** Oslo"
    assert answer(two, "wordy", Random(0)) == "[1]\n**Answer:** It is Oslo."
    assert answer(two, "unknown", Random(0)) == "**Answer:** unknown"
    either = {answer(two, "any", Random(seed)) for seed in range(20)}
    assert either == {"[0]\n**Answer:** Rome", "[1]\n**Answer:** Oslo"}
    none = seen("What is Ann's pet?", "It rains.")
    for habit in ("careful", "wordy", "any"):
        assert answer(none, habit, Random(0)) == "**Answer:** unknown"
    said = seen("Ann's city is now Lima.", "I am tired.", "Ann's city is now Oslo.")
    assert json.loads(operation(said, "careful")) == {"event": "UPDATE", "id": "1"}
    assert json.loads(operation(said, "overwrite")) == {"event": "UPDATE", "id": "0"}
    assert json.loads(operation(said, "keep")) == {"event": "ADD"}
    assert json.loads(operation(said, "ignore")) == {"event": "NOOP"}
    assert json.loads(operation(seen("It rains."), "overwrite")) == {"event": "ADD"}


def test_everything_parses_and_both_roles_are_shown_alike() -> None:
    found = shown(1.0)
    for each in found:
        role = MemoryManager() if each.role == "memory_manager" else AnswerAgent()
        role.parse(each.completion)
    operations = sum(each.role == "memory_manager" for each in found)
    assert operations == pytest.approx(300, abs=10)


def test_nothing_that_is_held_out_is_demonstrated() -> None:
    for each in shown(1.0):
        for text in each.observation.text.split("\n"):
            if stated := STATEMENT.search(text):
                person, attribute, _, value = stated.groups()
                assert value in values_of(person, attribute, "train")


def test_a_fixed_string_is_one_token() -> None:
    tokenizer = build_tokenizer(source().pieces())
    for each in shown(0.0, 200):
        assert len(tokenizer(each.completion)["input_ids"]) <= 6, each.completion
    for piece in source().pieces():
        assert len(tokenizer(piece)["input_ids"]) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"managing": {"kep": 1}}, "managing: needs weights, at least 0, for keep, ignore"),
        ({"answering": {"any": -1}}, "answering: needs weights, at least 0"),
        ({"managing": {"keep": 0}}, "no habit has a weight"),
        ({"tasks": []}, "demonstrations need dialogues"),
        ({"arena": raw_env(reader=TinyReader())}, "an arena without a reader"),
    ],
)
def test_what_demonstrates_nothing_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        source(**settings)
