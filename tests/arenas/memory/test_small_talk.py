"""Tests of dialogues in plain English for the memory arena."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from arenas.memory.arena import MANAGER, raw_env
from arenas.memory.dialogues import UNKNOWN, Split
from arenas.memory.small_talk import (
    CHATTER,
    PEOPLE,
    TOPICS,
    SmallTalkReader,
    asked_for,
    small_talk,
    stated,
)
from selfplay.types import Task

SPLITS: tuple[Split, ...] = ("train", "held_out")


def best_operation(fact: str, memories: Sequence[Mapping[str, str]]) -> str:
    """Return the operation of a perfect manager: one entry per person and topic, no chatter."""
    said = stated(fact)
    if not said:
        return '{"event": "NOOP"}'
    for memory in memories:
        found = stated(memory["text"])
        if found and found[:2] == said[:2]:
            return json.dumps({"event": "UPDATE", "id": memory["id"]})
    return '{"event": "ADD"}'


def exact_match(task: Task, *, perfect: bool = True) -> float:
    """Return the reader's exact match with a manager that is perfect or adds everything."""
    arena = raw_env(capacity=2, reader=SmallTalkReader())
    arena.begin(task, seed=0)
    while not arena.finished:
        seen = arena.view(MANAGER).fields
        best = best_operation(seen["fact"], seen["memories"]) if perfect else '{"event": "ADD"}'
        arena.play_stage({MANAGER: best})
    return float(arena.metrics["exact_match"])


@pytest.mark.parametrize("split", SPLITS)
def test_the_right_operations_answer_every_question(split: Split) -> None:
    tasks = small_talk(count=100, split=split, seed=3)
    assert [exact_match(task) for task in tasks] == [1.0] * 100
    adding = [exact_match(task, perfect=False) for task in tasks]
    assert 0.2 < sum(adding) / 100 < 0.8


def test_answers_are_the_last_values_that_the_messages_state() -> None:
    for task in small_talk(count=200, facts=4, updates=3, chatter=2, questions=4, people=2):
        now: dict[tuple[str, str], str] = {}
        facts = task.payload["facts"]
        kinds = [fact["kind"] for fact in facts]
        assert (kinds.count("new"), kinds.count("update"), kinds.count("chatter")) == (4, 3, 2)
        for fact in facts:
            said = stated(fact["text"])
            assert (said is None) == (fact["kind"] == "chatter")
            if said:
                assert said[0] == fact["speaker"]
                assert (said[:2] in now) == (fact["kind"] == "update")
                assert now.get(said[:2]) != said[2]
                now[said[:2]] = said[2]
        for question in task.payload["questions"]:
            pair = asked_for(question["question"])
            assert pair and question["answer"] == now[pair]
            (place,) = question["evidence"]
            assert stated(facts[place]["text"]) == (*pair, question["answer"])


def test_the_splits_share_no_name_value_or_wording() -> None:
    def wordings(split: Split) -> set[str]:
        topics = TOPICS[split].values()
        parts = [(*topic.values, *topic.new, *topic.update, *topic.questions) for topic in topics]
        return {*PEOPLE[split], *CHATTER[split]}.union(*parts)

    assert not wordings("train") & wordings("held_out")
    assert TOPICS["train"].keys() == TOPICS["held_out"].keys()

    def sentences(split: Split) -> set[str]:
        tasks = small_talk(count=300, split=split)
        said = {fact["text"] for task in tasks for fact in task.payload["facts"]}
        return said | {each["question"] for task in tasks for each in task.payload["questions"]}

    assert not sentences("train") & sentences("held_out")


def test_every_wording_is_read_in_one_way() -> None:
    for split in SPLITS:
        for name, topic in TOPICS[split].items():
            for wording in (*topic.new, *topic.update):
                for value in topic.values:
                    assert stated(f"Anna: {wording.format(value)}") == ("Anna", name, value)
            for wording in topic.questions:
                assert asked_for(wording.format("Anna")) == ("Anna", name)
        assert all(stated(f"Anna: {words}") is None for words in CHATTER[split])


def test_the_reader_reads_the_first_memory_that_answers() -> None:
    read = SmallTalkReader()
    notes = ["Anna: My pet is a cat.", "Boris: I live in Oslo.", "Anna: I live in Lima.", "{}"]
    assert read("Where does Anna live?", notes) == "Lima"
    assert read("Where does Clara live?", notes) == UNKNOWN
    assert read("Where?", ["", "{}", ": ", "Anna: I live in ."]) == UNKNOWN


def test_the_seed_makes_the_dialogues() -> None:
    first, again = small_talk(count=20, seed=1), small_talk(count=20, seed=1)
    assert first == again != small_talk(count=20, seed=2)
    assert len({task.id for task in first}) == 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"count": 0}, "count, facts and questions are at least 1"),
        ({"chatter": -1}, "updates and chatter at least 0"),
        ({"split": "test"}, "split: train or held_out, not 'test'"),
        ({"people": 17}, "people is 1 to 16, not 17"),
        ({"facts": 7}, "facts: 7; 2 to 6 fit 2 questions about 2 people"),
        ({"facts": 1}, "facts: 1; 2 to 6 fit"),
    ],
)
def test_impossible_dialogues_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small_talk(**{"count": 1, **settings})
