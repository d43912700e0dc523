"""Tests of demonstrations for the memory arena: careful work, and the habits at the end."""

import json
from collections import Counter
from itertools import islice
from random import Random
from typing import Any

import pytest

from arenas.memory.arena import raw_env
from arenas.memory.demonstrations import (
    MemoryDemonstrations,
    answer,
    extraction,
    operation,
    reflection,
    summaries,
)
from arenas.memory.dialogues import (
    STATEMENT,
    TinyReader,
    best_choice,
    best_facts,
    best_merge,
    best_operation,
    best_summaries,
    dialogues,
    sentences_of,
    values_of,
)
from roles.answer_agent import AnswerAgent
from roles.fact_extractor import FactExtractor
from roles.memory_manager import MemoryManager
from roles.reflector import Reflector
from roles.summarizer import Summarizer
from selfplay.models.tiny import build_tokenizer
from selfplay.role import Role
from selfplay.types import Demonstration, Observation

TASKS = dialogues(count=60, facts=7)
EXTRACTED: dict[str, Any] = {
    "arena": raw_env(memories=2, capacity=3, extractor=True),
    "tasks": dialogues(count=60, facts=4, sentences=2),
}


def source(**settings: Any) -> MemoryDemonstrations:
    arena = raw_env(memories=2, capacity=3)
    return MemoryDemonstrations(**{"arena": arena, "tasks": TASKS, **settings})


def shown(progress: float, count: int = 600, **settings: Any) -> list[Demonstration]:
    return list(islice(source(**settings).stream(Random(0), progress), count))


def seen(question: str, *memories: str) -> Observation:
    shown = [{"id": str(number), "text": text} for number, text in enumerate(memories)]
    return Observation(fields={"question": question, "fact": question, "memories": shown})


def test_practice_shows_the_best_operations_and_answers() -> None:
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


def test_an_extractor_begins_with_useful_and_useless_sentences_equally_often() -> None:
    turns = [each for each in shown(1.0, 1500, **EXTRACTED) if each.role == "fact_extractor"]
    written: Counter[bool] = Counter()
    said: Counter[bool] = Counter()
    for each in turns:
        facts = json.loads(FactExtractor(form="lines").parse(each.completion))["facts"]
        sentences = sentences_of(each.observation.fields["turn"])
        if len({*sentences}) < len(sentences):
            continue  # a repeated sentence has two chances
        for sentence in sentences:
            useful = STATEMENT.search(sentence) is not None
            said[useful] += 1
            written[useful] += sentence in facts
    for useful in (True, False):
        assert said[useful] > 150
        assert written[useful] / said[useful] == pytest.approx(0.5, abs=2.5 / said[useful] ** 0.5)


def test_extraction_by_hand() -> None:
    turn = "It rains. Ann's city is now Oslo."
    seen = Observation(fields={"turn": turn})
    assert extraction(seen, "careful", Random(0)) == ["Ann's city is now Oslo."]
    assert extraction(seen, "all", Random(0)) == ["It rains.", "Ann's city is now Oslo."]
    assert extraction(seen, "nothing", Random(0)) == []
    assert {len(extraction(seen, "any", Random(seed))) for seed in range(30)} == {0, 1, 2}


def test_careful_extractors_are_shown_first_and_roles_equally_often() -> None:
    found = shown(0.0, practice_share=1.0, **EXTRACTED)
    roles = Counter(each.role for each in found)
    assert roles["answer_agent"] > 150 and min(roles.values()) > 100
    for each in found:
        if each.role == "fact_extractor":
            facts = best_facts(each.observation.fields["turn"])
            assert each.completion == ("\n".join(facts) or "none")
    tokenizer = build_tokenizer(source(**EXTRACTED).pieces())
    turns = [each for each in found if each.role == "fact_extractor"]
    assert max(len(tokenizer(each.completion)["input_ids"]) for each in turns) == 12


REFLECTED: dict[str, Any] = {
    "arena": raw_env(memories=6, manager=False, reflector=True, kept=2),
    "tasks": dialogues(count=60, facts=8),
}


def test_a_reflector_begins_with_useful_and_useless_entries_equally_often() -> None:
    chances = {True: 0.0, False: 0.0}
    chosen = {True: 0, False: 0}
    for each in shown(1.0, 1500, **REFLECTED):
        if each.role != "reflector":
            continue
        fields = each.observation.fields
        best = best_choice(fields["question"], fields["memories"])
        named = json.loads(Reflector(marker="").parse(each.completion))["memories"]
        assert len(named) == min(2, len(fields["memories"]))
        for memory in fields["memories"]:
            chances[memory["id"] in best] += len(named) / len(fields["memories"])
            chosen[memory["id"] in best] += memory["id"] in named
    for useful in (True, False):
        assert chances[useful] > 150
        assert chosen[useful] == pytest.approx(chances[useful], abs=4 * chances[useful] ** 0.5)


def test_reflection_by_hand() -> None:
    two = seen("What is Ann's city?", "Bob's city is Rome.", "Ann's city is now Oslo.", "It rains.")
    asked = Observation(fields={**two.fields, "kept": 2})
    assert reflection(asked, "careful", Random(0)) == ["1"]
    assert reflection(asked, "first", Random(0)) == ["0", "1"]
    drawn = {tuple(reflection(asked, "any", Random(seed))) for seed in range(60)}
    assert len(drawn) == 6 and {len(each) for each in drawn} == {2}
    for each in shown(0.0, practice_share=1.0, **REFLECTED):
        if each.role == "reflector":
            fields = each.observation.fields
            best = best_choice(fields["question"], fields["memories"])
            assert each.completion == ("".join(f"[{name}]" for name in best) or "none")


SUMMARIZED: dict[str, Any] = {
    "arena": raw_env(memories=2, summarizer=True, operations=["ADD", "UPDATE"]),
    "tasks": dialogues(count=60, facts=8),
    "managing": {"keep": 6, "overwrite": 2, "careful": 2},
}


def test_careful_summarizers_and_managers_are_shown_first() -> None:
    found = shown(0.0, practice_share=1.0, **SUMMARIZED)
    roles = Counter(each.role for each in found)
    assert set(roles) == {"summarizer", "memory_manager", "answer_agent"}
    assert min(roles.values()) > 120
    role = Summarizer(style="terse", form="lines")
    tokenizer = build_tokenizer(source(**SUMMARIZED).pieces())
    for each in found:
        fields = each.observation.fields
        if each.role == "summarizer":
            best = best_summaries(fields["turns"], fields["speaker"])
            memories = json.loads(role.parse(each.completion))["extracted_memories"]
            assert [(m["summary"], *m["reference"]) for m in memories] == best
            assert len(tokenizer(each.completion)["input_ids"]) <= 40
        elif each.role == "memory_manager":
            assert each.completion == best_merge(fields["fact"], fields["memories"])


def test_all_roles_of_rmm_are_shown_equally_often() -> None:
    arena = raw_env(
        memories=6, summarizer=True, operations=["ADD", "UPDATE"], reflector=True, kept=2
    )
    rmm = {**SUMMARIZED, "arena": arena}
    roles: dict[str, Role] = {
        "summarizer": Summarizer(style="terse", form="lines"),
        "memory_manager": MemoryManager(style="terse"),
        "reflector": Reflector(style="terse", marker=""),
        "answer_agent": AnswerAgent(style="terse"),
    }
    found = shown(0.5, **rmm)
    counts = Counter(each.role for each in found)
    assert set(counts) == set(roles) and min(counts.values()) > 90
    tokenizer = build_tokenizer(source(**rmm).pieces())
    for each in found:
        roles[each.role].parse(each.completion)
        longest = 40 if each.role == "summarizer" else 12
        assert len(tokenizer(each.completion)["input_ids"]) < longest, "room for the end token"


def test_a_summarizer_begins_with_useful_and_useless_sentences_equally_often() -> None:
    written: Counter[bool] = Counter()
    said: Counter[bool] = Counter()
    for each in shown(1.0, 1500, **SUMMARIZED):
        if each.role != "summarizer":
            continue
        fields = each.observation.fields
        best = [place for _, place in best_summaries(fields["turns"], fields["speaker"])]
        made = json.loads(Summarizer(form="lines").parse(each.completion))["extracted_memories"]
        places = [m["reference"][0] for m in made]
        for turn in fields["turns"]:
            if turn["speaker"] == fields["speaker"]:
                said[turn["place"] in best] += 1
                written[turn["place"] in best] += turn["place"] in places
    for useful in (True, False):
        assert said[useful] > 150
        assert written[useful] / said[useful] == pytest.approx(0.5, abs=2.5 / said[useful] ** 0.5)


def test_summaries_by_hand() -> None:
    turns = [
        {"place": 0, "speaker": "Ann", "text": "It rains. Ann's pet is cat."},
        {"place": 1, "speaker": "Bob", "text": "Bob's pet is owl."},
        {"place": 2, "speaker": "Ann", "text": "Ann's pet is now dog."},
    ]
    session = Observation(fields={"turns": turns, "speaker": "Ann"})
    assert summaries(session, "careful", Random(0)) == [("Ann's pet is now dog.", 2)]
    drawn = {tuple(summaries(session, "any", Random(seed))) for seed in range(80)}
    assert len(drawn) == 8, "each of three sentences is in or out"
    fact = seen("It rains.", "Ann's pet is cat.")
    assert json.loads(operation(fact, "careful", merging=True)) == {"event": "ADD"}
    assert json.loads(operation(fact, "careful")) == {"event": "NOOP"}


def test_completions_parse_and_both_roles_are_shown_equally_often() -> None:
    found = shown(1.0)
    for each in found:
        role = MemoryManager() if each.role == "memory_manager" else AnswerAgent()
        role.parse(each.completion)
    operations = sum(each.role == "memory_manager" for each in found)
    assert operations == pytest.approx(300, abs=10)


def test_no_held_out_value_is_demonstrated() -> None:
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
        ({"summarizing": {"all": 1}}, "summarizing: needs weights, at least 0, for any, careful"),
        ({"extracting": {"some": 1}}, "extracting: needs weights, at least 0, for any, all"),
        ({"tasks": []}, "demonstrations need dialogues"),
        ({"arena": raw_env(reader=TinyReader())}, "an arena without a reader"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        source(**settings)
