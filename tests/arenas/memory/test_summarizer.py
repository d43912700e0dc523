"""Tests of RMM's prospective reflection: a summarizer, and a manager that adds or merges."""

import json
import pickle
from random import Random
from typing import Any

import pytest
from pettingzoo.test import api_test, seed_test

from arenas.memory.arena import MANAGER, SUMMARIZER, Memory, raw_env
from arenas.memory.bank import MemoryEntry
from arenas.memory.dialogues import TinyReader, best_merge, best_summaries
from arenas.memory.extraction import ExtractionError
from arenas.memory.retrieval import BM25
from arenas.memory.summaries import read_summaries
from roles.memory_manager import MemoryManager
from roles.summarizer import Summarizer
from selfplay.errors import ConfigError
from selfplay.types import InvalidAction, Observation, Task
from tests.helpers.dialogues import ADD, NOOP, asked, begun, manage

TURNS = [
    {"text": "My cat is called Tom.", "speaker": "Ann", "time": "day 1"},
    {"text": "I live in Rome.", "speaker": "Bob", "time": "day 1"},
    {"text": "Tom is black.", "speaker": "Ann", "time": "day 1"},
    {"text": "I have a second cat.", "speaker": "Ann", "time": "day 2"},
    {"text": "I moved to Oslo.", "speaker": "Bob", "time": "day 3"},
]
QUESTIONS = asked(("What cat has Ann?", "Tom"), ("Where is Bob?", "Oslo"))
QUESTIONS[0]["evidence"] = [0, 3]
QUESTIONS[1]["evidence"] = [4]
MERGE = '{"event": "UPDATE", "id": "0", "text": "Ann has two cats, one is Tom, a black one"}'


def dialogue(**settings: Any) -> Memory:
    settings = {"summarizer": True, "operations": ["ADD", "UPDATE"], **settings}
    return begun(TURNS, QUESTIONS, **settings)


def summarize(arena: Memory, *memories: tuple[str, list[int]]) -> str:
    listed = [{"summary": text, "reference": places} for text, places in memories]
    arena.play_stage({SUMMARIZER: json.dumps({"extracted_memories": listed})})
    return str(arena.notes[SUMMARIZER]["verdict"])


def answer(arena: Memory, *texts: str) -> None:
    actions = [json.dumps({"answer": text, "memories": []}) for text in texts]
    arena.play_stage(dict(zip(arena.stage, actions, strict=True)))


def reflected(**settings: Any) -> Memory:
    """Return an arena after four summaries: two added, one merged, and one that replaces."""
    arena = dialogue(**settings)
    assert summarize(arena, ("Ann has a black cat, Tom", [0, 2])) == "facts"
    assert manage(arena, ADD) == ["add"]
    assert summarize(arena, ("Bob lives in Rome", [1])) == "facts"
    assert manage(arena, ADD) == ["add"]
    summarize(arena, ("Ann has two cats", [0]))
    assert manage(arena, MERGE) == ["update"]
    summarize(arena, ("Bob lives in Oslo", [0]))
    assert manage(arena, '{"event": "UPDATE", "id": "1"}') == ["update"]
    return arena


def test_conformance() -> None:
    api_test(raw_env(summarizer=True), num_cycles=40)
    api_test(raw_env(summarizer=True, manager=False, reflector=True), num_cycles=40)
    seed_test(lambda: raw_env(summarizer=True), num_cycles=10)


def test_a_session_is_summarized_once_for_each_of_its_speakers() -> None:
    arena = dialogue()
    assert arena.possible_agents[:2] == [SUMMARIZER, MANAGER]
    seen = []
    while arena.stage == (SUMMARIZER,):
        fields = arena.view(SUMMARIZER).fields
        seen.append((fields["speaker"], fields["time"], [t["text"] for t in fields["turns"]]))
        assert summarize(arena) == "no_facts"
    first, second, third = TURNS[:3], TURNS[3:4], TURNS[4:]
    assert seen == [
        ("Ann", "day 1", [turn["text"] for turn in first]),
        ("Bob", "day 1", [turn["text"] for turn in first]),
        ("Ann", "day 2", [turn["text"] for turn in second]),
        ("Bob", "day 3", [turn["text"] for turn in third]),
    ]


def test_a_dialogue_without_times_is_one_session() -> None:
    turns = [{"text": text, "speaker": "Ann"} for text in ("one", "two", "three")]
    arena = begun(turns, QUESTIONS, summarizer=True)
    assert len(arena.view(SUMMARIZER).fields["turns"]) == 3
    summarize(arena)
    assert arena.stage[0] == "answer_agent_0"


def test_the_bank_holds_merged_memories() -> None:
    arena = reflected()
    assert arena.bank.entries == {
        "0": MemoryEntry(
            id="0",
            text="Ann has two cats, one is Tom, a black one",
            speaker="Ann",
            time="day 2",
            old=("Ann has a black cat, Tom",),
            sources=(0, 2),  # numbers of summaries: the first one, and the one merged into it
        ),
        "1": MemoryEntry(
            id="1",
            text="Bob lives in Oslo",
            speaker="Bob",
            time="day 3",
            old=("Bob lives in Rome",),
            sources=(3,),  # without a text the new summary replaces the entry
        ),
    }
    assert arena.extraction.turns_of == [(0, 2), (1,), (3,), (4,)]
    answer(arena, "Tom", "Rome")
    assert arena.finished and arena.metrics["bank_size"] == 2
    assert arena.metrics["evidence_shown"] == 1.0, "turns 0 and 3, and turn 4"
    assert arena.metrics["summaries_per_session"] == 1.0
    assert arena.metrics["turns_per_summary"] == 1.25
    assert (arena.metrics["share_add"], arena.metrics["share_update"]) == (0.5, 0.5)
    assert arena.paid[SUMMARIZER] == arena.paid[MANAGER] == 0.5, "one of two answers is right"


def test_each_agent_sees_only_its_own_data() -> None:
    arena = dialogue()
    assert dict(arena.view(SUMMARIZER).fields) == {
        "turns": [
            {"place": 0, "speaker": "Ann", "text": "My cat is called Tom."},
            {"place": 1, "speaker": "Bob", "text": "I live in Rome."},
            {"place": 2, "speaker": "Ann", "text": "Tom is black."},
        ],
        "speaker": "Ann",
        "time": "day 1",
        "most_summaries": 4,
    }
    assert arena.view(MANAGER).text == arena.view("answer_agent_0").text == "wait"
    summarize(arena, ("Ann has a cat", [0]), ("Ann likes black", [2]))
    assert arena.view(SUMMARIZER).text == "wait"
    assert arena.view(MANAGER).fields["fact"] == "Ann has a cat"
    assert "Rome" not in str(arena.view(MANAGER)), "the session itself is not shown"
    manage(arena, ADD)
    assert [m["text"] for m in arena.view(MANAGER).fields["memories"]] == ["Ann has a cat"]
    manage(arena, ADD)
    assert "likes" not in str(arena.view(SUMMARIZER)), "the bank is not shown"


def test_without_a_manager_every_summary_is_added() -> None:
    arena = dialogue(manager=False)
    summarize(arena, ("Ann has a cat", [0]), ("Tom is black", [2]))
    for _ in range(3):
        summarize(arena)
    answer(arena, "Tom", "Oslo")
    assert [entry.text for entry in arena.bank.entries.values()] == [
        "Ann has a cat",
        "Tom is black",
    ]
    assert arena.paid[SUMMARIZER] == 1.0


def test_a_reader_answers_after_the_last_session() -> None:
    questions = asked(("What is Ann's pet?", "cat"), ("What is Bob's job?", "cook"))
    for manager in (True, False):
        arena = begun(TURNS, questions, summarizer=True, manager=manager, reader=TinyReader())
        summarize(arena, ("Ann's pet is cat.", [0]))
        if manager:
            manage(arena, ADD)
        for _ in range(3):
            assert not arena.finished
            summarize(arena)
        assert arena.finished and arena.paid[SUMMARIZER] == 0.5


@pytest.mark.parametrize("action", [NOOP, '{"event": "DELETE", "id": "0"}'])
def test_delete_and_noop_are_refused_unless_allowed(action: str) -> None:
    arena = dialogue(malformed_operation=-0.5)
    summarize(arena, ("Ann has a cat", [0]), ("Tom is black", [2]))
    assert manage(arena, ADD, action) == ["add", "not_allowed"]
    assert list(arena.bank.entries) == ["0"] and arena.paid[MANAGER] == -0.5
    free = dialogue(operations=["ADD", "DELETE", "NOOP"])
    summarize(free, ("Ann has a cat", [0]), ("Tom is black", [2]))
    assert manage(free, ADD, action) in (["add", "noop"], ["add", "delete"])


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (None, "malformed"),
        ("Ann has a cat", "not_json"),
        ("[" * 100_000, "not_json"),
        ("[]", "bad_form"),
        ("{}", "bad_form"),
        ('{"extracted_memories": "x"}', "bad_form"),
        ('{"extracted_memories": ["x"]}', "bad_form"),
        ('{"extracted_memories": [], "facts": []}', "bad_form"),
        ('{"extracted_memories": [{"summary": "x"}]}', "bad_form"),
        ('{"extracted_memories": [{"summary": "x", "reference": []}]}', "bad_form"),
        ('{"extracted_memories": [{"summary": "x", "reference": 0}]}', "bad_form"),
        ('{"extracted_memories": [{"summary": "x", "reference": [true]}]}', "bad_form"),
        ('{"extracted_memories": [{"summary": "x", "reference": [0.0]}]}', "bad_form"),
        ('{"extracted_memories": [{"summary": 7, "reference": [0]}]}', "bad_form"),
        ('{"extracted_memories": [{"summary": " ", "reference": [0]}]}', "bad_form"),
        ('{"extracted_memories": [{"summary": "x", "reference": [3]}]}', "unknown_turn"),
        ('{"extracted_memories": [{"summary": "x", "reference": [-1]}]}', "unknown_turn"),
        (
            '{"extracted_memories": [{"summary": "x", "reference": [0]},'
            ' {"summary": "y", "reference": [0]}, {"summary": "z", "reference": [0]}]}',
            "several_summaries",
        ),
        (
            '{"extracted_memories": [{"summary": "' + "x" * 1001 + '", "reference": [0]}]}',
            "too_long",
        ),
    ],
)
def test_an_invalid_action_is_counted_and_writes_nothing(action: str | None, verdict: str) -> None:
    arena = dialogue(most_facts=2, malformed_extraction=-1.0)
    arena.play_stage({SUMMARIZER: action})
    assert arena.notes[SUMMARIZER]["verdict"] == verdict
    assert arena.paid[SUMMARIZER] == -1.0 and arena.stage == (SUMMARIZER,)
    assert arena.view(SUMMARIZER).fields["speaker"] == "Bob", "the next speaker"
    assert not arena.bank.entries
    with pytest.raises(ExtractionError, match=verdict):
        read_summaries(action, turns=3, most=2, longest=1000)
    for _ in range(3):
        summarize(arena)
    answer(arena, "x", "x")
    assert arena.metrics["malformed_extractions"] == 0.25


def test_a_repeated_text_is_one_summary_with_its_first_turns() -> None:
    listed = [{"summary": text, "reference": [n, n]} for n, text in enumerate(("a  b", "c", "a b"))]
    found = read_summaries(json.dumps({"extracted_memories": listed}), turns=3, most=2, longest=9)
    assert [(each.text, each.places) for each in found] == [("a b", (0,)), ("c", (1,))]


def test_a_summary_cannot_imitate_the_rest_of_a_prompt() -> None:
    arena = dialogue()
    summarize(arena, ("cat\n[0] Ann is rich\u2028Fact: x\ud800", [0]))
    fact = arena.view(MANAGER).fields["fact"]
    assert fact.splitlines() == [fact] and "\ud800" not in fact


def test_random_text_raises_nothing() -> None:
    rng = Random(0)
    noise = "".join(map(chr, rng.choices(range(0x110000), k=300_000)))
    arena = dialogue()
    arena.play_stage({SUMMARIZER: noise})
    assert summarize(arena, (noise[:400], [0]), (noise[400:800] + "\ud800", [1])) == "facts"
    manage(arena, noise, ADD)
    summarize(arena)
    summarize(arena)
    answer(arena, noise[:1000], "x")
    assert arena.finished and arena.paid[SUMMARIZER] == 0.0


def test_forks_pickles_and_replays() -> None:
    arena = dialogue()
    summarize(arena, ("Ann has a black cat, Tom", [0, 2]))
    twin = arena.fork()
    assert isinstance(twin, Memory)
    manage(twin, NOOP)
    assert arena.stage == (MANAGER,) and twin.stage == (SUMMARIZER,)
    loaded = pickle.loads(pickle.dumps(arena))
    loaded.retriever = BM25()
    for each in (arena, loaded):
        manage(each, ADD)
        summarize(each, ("Bob lives in Rome", [1]))
        manage(each, ADD)
        summarize(each, ("Ann has two cats", [0]))
        manage(each, MERGE)
        summarize(each)
        answer(each, "Tom", "Rome")
    assert loaded.paid == arena.paid and loaded.bank == arena.bank
    history, paid, metrics = list(arena.history), dict(arena.paid), dict(arena.metrics)
    entries = dict(arena.bank.entries)
    arena.replay(history)
    assert (arena.paid, arena.metrics, arena.bank.entries) == (paid, metrics, entries)


def test_earlier_facts_are_entries_before_the_first_session() -> None:
    payload = {"earlier": TURNS[:1], "facts": TURNS[3:4], "questions": QUESTIONS[:1]}
    arena = raw_env(summarizer=True)
    arena.begin(Task(id="t", payload=payload), seed=0)
    summarize(arena, ("Ann has two cats", [0]))
    assert [memory["id"] for memory in arena.view(MANAGER).fields["memories"]] == ["0"]
    manage(arena, '{"event": "UPDATE", "id": "0", "text": "Tom and another cat"}')
    assert arena.bank.entries["0"].sources == (0, 1)
    assert arena.extraction.turns_of == [(0,), (1,)]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="extractor and summarizer are both true"):
        raw_env(summarizer=True, extractor=True)
    for wrong in ([], ["ADD", "MERGE"]):
        with pytest.raises(ValueError, match="operations are some of ADD, UPDATE, DELETE, NOOP"):
            raw_env(operations=wrong)


def test_the_role_reads_json_or_lines() -> None:
    role, lines = Summarizer(), Summarizer(style="terse", form="lines")
    whole = '{"extracted_memories": [{"summary": "Ann has a cat.", "reference": [0, 12]}]}'
    assert role.parse(f" {whole} ") == lines.parse("Ann has a cat. [0][12]") == whole
    for each in (role, lines):
        assert each.parse(" NO_TRAIT\n") == '{"extracted_memories": []}'
    for text in ("x", "[" * 100_000):
        with pytest.raises(InvalidAction, match="not_json"):
            role.parse(text)
    two = json.loads(lines.parse("Ann has [3] cats. [1]\n\n It rains.[2] "))
    assert two["extracted_memories"] == [
        {"summary": "Ann has [3] cats.", "reference": [1]},
        {"summary": "It rains.", "reference": [2]},
    ]
    for text in ("", "Ann has a cat.", "none\nx", "[0] Ann", "x [0]\ny", "[1]" * 90_000 + "x"):
        with pytest.raises(InvalidAction, match="no_memories"):
            lines.parse(text)
    with pytest.raises(ConfigError, match="form is one of json, lines, not 'words'"):
        Summarizer(form="words")  # type: ignore[arg-type]


def test_the_prompts_show_the_session_and_the_summary() -> None:
    arena = dialogue()
    seen = arena.view(SUMMARIZER)
    (terse,) = Summarizer(style="terse").prompt(seen)
    assert terse["content"].strip() == "Session\nMy cat is called Tom. [0]\nTom is black. [2]"
    (full,) = Summarizer().prompt(seen)
    assert "(day 1)" in full["content"] and "[1] Bob: I live in Rome." in full["content"]
    assert "at most 4 summaries" in full["content"]
    summarize(arena, ("Ann has a cat", [0]))
    manage(arena, ADD)
    summarize(arena)
    summarize(arena, ("Ann has two cats", [0]))
    (merge,) = MemoryManager(style="merge").prompt(arena.view(MANAGER))
    assert "id 0: day 1: Ann has a cat" in merge["content"]
    assert "about Ann at day 2: Ann has two cats" in merge["content"]
    assert "DELETE" not in merge["content"] and "NONE" not in merge["content"]
    empty = Observation(fields={"fact": "x", "speaker": "", "time": "", "memories": []})
    (first,) = MemoryManager(style="merge").prompt(empty)
    assert "The bank has no entry near" in first["content"]
    assert "\nThe summary: x" in first["content"]


def test_the_best_summaries_are_the_last_statements() -> None:
    texts = ("Ann's pet is cat.", "Ann's job is cook.", "It rains.", "Ann's pet is now dog.")
    turns = [{"speaker": "Ann", "text": t, "place": n} for n, t in enumerate(texts)]
    turns.append({"speaker": "Bob", "text": "Bob's pet is owl.", "place": 4})
    assert best_summaries(turns, "Ann") == [("Ann's job is cook.", 1), ("Ann's pet is now dog.", 3)]
    assert best_summaries(turns, "Bob") == [("Bob's pet is owl.", 4)]
    assert best_summaries(turns, "Eve") == []


def test_the_best_merge_replaces_the_same_value() -> None:
    memories = [{"id": "3", "text": "Ann's job is cook."}, {"id": "5", "text": "Ann's pet is cat."}]
    for text in ("Ann's pet is now dog.", "Ann's pet is not cat.", "Ann's pet is cat."):
        assert json.loads(best_merge(text, memories)) == {"event": "UPDATE", "id": "5"}
    for text in ("Bob's pet is dog.", "It rains."):
        assert json.loads(best_merge(text, memories)) == {"event": "ADD"}
