"""Tests of dialogues for the memory arena: generated ones, and LoCoMo's file format."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arenas.memory.arena import MANAGER, raw_env
from arenas.memory.dialogues import (
    KINDS,
    PEOPLE,
    STATEMENT,
    UNKNOWN,
    VALUES,
    best_facts,
    dialogue_task,
    dialogues,
    sentences_of,
    values_of,
)
from arenas.memory.locomo import tasks
from selfplay.errors import ConfigError
from selfplay.types import Task


def test_no_statement_is_in_both_splits() -> None:
    def stated(split: Any) -> set[tuple[str, ...]]:
        texts = [f["text"] for t in dialogues(count=300, split=split) for f in t.payload["facts"]]
        found = [STATEMENT.search(text) for text in texts]
        return {match.group(1, 2, 4) for match in found if match}

    train, held_out = stated("train"), stated("held_out")
    assert len(train) > 100 and len(held_out) > 40
    assert not train & held_out
    for person in PEOPLE:
        for attribute, values in VALUES.items():
            both = [values_of(person, attribute, split) for split in ("train", "held_out")]
            assert sorted(both[0] + both[1]) == sorted(values) and min(map(len, both)) >= 2


def test_the_answers_follow_from_the_dialogue() -> None:
    kinds = set()
    for task in dialogues(count=200, facts=9, sessions=3, questions=8, seed=5):
        known: dict[tuple[str, str], str] = {}
        mentioned = set()
        facts = task.payload["facts"]
        for fact in facts:
            kinds.add(fact["kind"])
            if stated := STATEMENT.search(fact["text"]):
                person, attribute, change, value = stated.groups()
                key = (person, attribute)
                mentioned.add(key)
                assert person == fact["speaker"]
                assert (key in known) == (fact["kind"] != "new")
                if change == "not ":
                    assert known.pop(key) == value
                else:
                    assert (known.get(key) == value) == (fact["kind"] == "repeat")
                    known[key] = value
        for question in task.payload["questions"]:
            person, attribute = question["question"][8:-1].split("'s ")
            assert question["answer"] == known.get((person, attribute), UNKNOWN)
            for number in question["evidence"]:
                assert question["answer"] in facts[number]["text"]
        assert len(task.payload["questions"]) == len(mentioned) >= 1
        assert [fact["time"] for fact in facts] == ["day 1"] * 3 + ["day 2"] * 3 + ["day 3"] * 3
    assert kinds == set(KINDS)


def test_a_turn_of_several_sentences_has_facts_and_chatter() -> None:
    tasks = dialogues(count=100, facts=4, sentences=3, questions=8, seed=2)
    for task in tasks:
        turns, known = task.payload["facts"], dict[tuple[str, str], str]()
        assert len(turns) == 4
        for turn in turns:
            kinds = turn["kind"].split()
            assert len(sentences_of(turn["text"])) == len(kinds) == 3
            facts = best_facts(turn["text"])
            stating = zip(sentences_of(turn["text"]), kinds, strict=True)
            assert {*facts} == {text for text, kind in stating if kind != "chatter"}
            assert len({*facts}) == len(facts)
            for fact in facts:
                stated = STATEMENT.search(fact)
                assert stated and stated[1] == turn["speaker"]
                known[stated[1], stated[2]] = stated[4] if stated[3] != "not " else UNKNOWN
        for question in task.payload["questions"]:
            person, attribute = question["question"][8:-1].split("'s ")
            assert question["answer"] == known[person, attribute]
            for number in question["evidence"]:
                assert question["answer"] in turns[number]["text"]
    with pytest.raises(ValueError, match="sentences are at least 1"):
        dialogues(count=1, sentences=0)


def test_settings_choose_the_kinds_of_facts_and_the_number_of_people() -> None:
    alone = dialogues(count=50, people=1, kinds={"contradiction": 0, "repeat": 0, "update": 9})
    facts = [fact for task in alone for fact in task.payload["facts"]]
    assert {fact["kind"] for fact in facts} == {"new", "update", "chatter"}
    assert all(len({f["speaker"] for f in task.payload["facts"]}) == 1 for task in alone)
    for wrong in ({"kinds": {"new": 0}}, {"kinds": {"update": -1}}, {"people": 9}, {"count": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            dialogues(**{"count": 1, **wrong})  # type: ignore[arg-type]


def test_the_seed_makes_the_dialogues() -> None:
    first, again = dialogues(count=20, seed=1), dialogues(count=20, seed=1)
    assert first == again != dialogues(count=20, seed=2)
    assert len({task.id for task in first}) == 20
    json.dumps([dict(task.payload) for task in first])
    assert dialogue_task(Random(0), number=0, split="train", facts=1).payload["questions"]
    with pytest.raises(ValueError, match="at least 1"):
        dialogues(count=0)


def conversation() -> dict[str, Any]:
    """Return one conversation of two sessions in the format of the published file."""
    return {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "I moved to Rome."},
                {"speaker": "Bob", "dia_id": "D1:2", "text": "Look!", "blip_caption": "a cat"},
            ],
            "session_2_date_time": "7:00 pm on 9 June, 2023",
            "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "I am a nurse now."}],
            "session_3_date_time": "9:00 pm on 9 June, 2023",
        },
        "observation": {
            "session_1_observation": {"Ann": [["Ann lives in Rome.", "D1:1"]], "Bob": []},
            "session_2_observation": {"Ann": [["Ann is a nurse.", ["D2:1"]]]},
        },
        "qa": [
            {"question": "Where?", "answer": "Rome", "evidence": ["D1:1"], "category": 4},
            {"question": "When?", "answer": 2023, "evidence": ["D1:2; D2:1"], "category": 2},
            {"question": "Why?", "adversarial_answer": "no", "evidence": [], "category": 5},
        ],
        "event_summary": {},
    }


def written(folder: Path, data: Any) -> str:
    path = folder / "locomo.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return str(path)


def test_a_conversation_becomes_facts_and_questions(tmp_path: Path) -> None:
    (task,) = tasks(path=written(tmp_path, [conversation()]))
    assert task.payload["facts"] == [
        {"text": "I moved to Rome.", "speaker": "Ann", "time": "1:56 pm on 8 May, 2023"},
        {
            "text": "Look! [shows a picture: a cat]",
            "speaker": "Bob",
            "time": "1:56 pm on 8 May, 2023",
        },
        {"text": "I am a nurse now.", "speaker": "Ann", "time": "7:00 pm on 9 June, 2023"},
    ]
    assert task.payload["questions"] == [
        {"question": "Where?", "answer": "Rome", "evidence": [0]},
        {"question": "When?", "answer": "2023", "evidence": [1, 2]},
    ]


def test_each_turn_that_is_the_last_evidence_of_a_question_is_a_task(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation()])
    found = tasks(path=path, per="turn", window=1)
    texts = [[f["text"][:6] for f in task.payload["earlier"]] for task in found]
    assert texts == [[], ["Look! "]]
    assert [task.payload["facts"][0]["text"][:6] for task in found] == ["I move", "I am a"]
    asked = [[(q["question"], q["evidence"]) for q in task.payload["questions"]] for task in found]
    assert asked == [[("Where?", [0])], [("When?", [0, 1])]]
    arena = raw_env()
    arena.begin(found[1], seed=0)
    arena.play_stage({MANAGER: '{"event": "ADD"}'})
    arena.play_stage({"answer_agent_0": '{"answer": "2023", "memories": []}'})
    assert arena.paid[MANAGER] == 1.0 and arena.metrics["evidence_shown"] == 1.0


def test_observations_can_be_the_facts(tmp_path: Path) -> None:
    (task,) = tasks(path=written(tmp_path, [conversation()]), facts="observations", categories=[4])
    assert [fact["text"] for fact in task.payload["facts"]] == [
        "Ann lives in Rome.",
        "Ann is a nurse.",
    ]
    assert task.payload["facts"][1]["time"] == "7:00 pm on 9 June, 2023"
    assert [question["evidence"] for question in task.payload["questions"]] == [[0]]


def without(key: str, *path: Any) -> list[Any]:
    """Return the data of the file without one key."""
    data = [conversation()]
    place: Any = data[0]
    for part in path:
        place = place[part]
    del place[key]
    return data


def changed(value: Any, *path: Any) -> list[Any]:
    """Return the data of the file with another value in one place."""
    data = [conversation()]
    place: Any = data[0]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "needs a list of conversations"),
        ({"qa": []}, "needs a list of conversations"),
        ([7], "conversation 0: the conversation: needs keys and values"),
        (without("qa"), "conversation 0: qa: missing"),
        (without("conversation"), "conversation: missing"),
        (without("session_1_date_time", "conversation"), "session_1_date_time: missing"),
        (without("text", "conversation", "session_1", 1), r"session_1\[1\].text: missing"),
        (changed(7, "conversation", "session_2", 0, "text"), "text: needs str, not int"),
        (changed("x", "conversation", "session_2"), "session_2: needs list, not str"),
        (changed("D1:1", "conversation", "session_2", 0, "dia_id"), "duplicate dia_id"),
        (without("answer", "qa", 0), r"qa\[0\].answer: missing"),
        (changed(True, "qa", 1, "category"), r"qa\[1\].category: needs int, not bool"),
        (changed("D1:1", "qa", 0, "evidence"), "evidence: needs list, not str"),
        (changed([], "qa"), "qa: no question of the categories"),
        (changed({"speaker_a": "Ann"}, "conversation"), "no turns"),
    ],
)
def test_a_malformed_file_is_a_one_line_error(tmp_path: Path, data: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as error:
        tasks(path=written(tmp_path, data))
    assert "\n" not in str(error.value) and "locomo" in str(error.value)


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [conversation()])
    for settings, complaint in (
        ({"conversations": [1]}, "has conversations 0 to 0: 1"),
        ({"facts": "words"}, "facts is one of turns, observations"),
        ({"per": "day"}, "per is one of"),
        ({"window": -1}, "window is 0 or more"),
        ({"path": str(tmp_path / "none.json")}, "cannot read"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            tasks(**{"path": path, **settings})  # type: ignore[arg-type]
    lonely = changed([], "qa", 0, "evidence")
    lonely[0]["qa"].pop(1)
    with pytest.raises(ConfigError, match="no question names one of the turns"):
        tasks(path=written(tmp_path, lonely), per="turn")


def test_a_task_without_questions_is_refused_by_the_arena_too() -> None:
    with pytest.raises(ValueError, match="the dialogue has no questions"):
        raw_env().begin(Task(id="t", payload={"facts": [{"text": "x"}], "questions": []}), 0)
