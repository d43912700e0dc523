"""Tests of Memory-R1's arena with scripted managers and answer agents."""

import json
import pickle
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.memory.arena import MANAGER, Memory, env, raw_env
from arenas.memory.dialogues import TinyReader
from arenas.memory.retrieval import BM25
from selfplay.types import Task
from tests.helpers.dialogues import ADD, NOOP, asked, begun, manage, said


def answer(arena: Memory, *texts: str | None) -> None:
    actions = [None if t is None else json.dumps({"answer": t, "memories": []}) for t in texts]
    arena.play_stage(dict(zip(arena.stage, actions, strict=True)))


def shown(arena: Memory, agent: str) -> list[str]:
    return [memory["text"] for memory in arena.view(agent).fields["memories"]]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(answer_agents=2), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/memory_v0", answer_agents=2)
    made.reset(seed=1)
    assert made.agent_selection == MANAGER


def test_the_manager_is_paid_the_mean_score_of_the_answers() -> None:
    questions = asked(("Where?", "in Rome"), ("Pet?", "a cat"), ("Job?", "nurse"), ("Tea?", "yes"))
    arena = begun(said("Ann lives in Rome"), questions, malformed_answer=-0.5)
    manage(arena, ADD)
    answer(arena, "In Rome.", "the cat", "pilot", None)
    agents = arena.answer_agents
    assert [arena.paid[agent] for agent in agents] == [1.0, 1.0, 0.0, -0.5]
    assert arena.paid[MANAGER] == 0.5, "an invalid answer counts as 0 for the manager"
    assert arena.finished and arena.metrics["exact_match"] == 0.5


def test_f1_pays_for_shared_words() -> None:
    questions = asked(("Where?", "Rome in Italy"), ("Pet?", "cat"))
    arena = begun(said("x"), questions, outcome="f1")
    manage(arena, NOOP)
    answer(arena, "the Rome", "a dog")  # precision 1, recall 1/3: F1 1/2
    assert [arena.paid[agent] for agent in arena.answer_agents[:2]] == [0.5, 0.0]
    assert arena.paid[MANAGER] == arena.metrics["f1"] == 0.25
    assert arena.metrics["exact_match"] == 0.0


def test_more_questions_than_agents_are_asked_in_turn() -> None:
    questions = asked(*((f"Q{n}?", str(n)) for n in range(5)))
    arena = begun(said("x"), questions, answer_agents=2)
    manage(arena, NOOP)
    stages = []
    while not arena.finished:
        stages.append([arena.view(agent).fields["question"] for agent in arena.stage])
        answer(arena, *["0", "9"][: len(arena.stage)])
    assert stages == [["Q0?", "Q1?"], ["Q2?", "Q3?"], ["Q4?"]]
    assert arena.paid == {MANAGER: 0.2, "answer_agent_0": 1.0, "answer_agent_1": 0.0}


def test_an_episode_of_all_four_operations() -> None:
    facts = said("city is Rome", "city is Oslo", "pet is a cat", "pet is not a cat", "it rains")
    arena = begun(facts, asked(("City?", "Oslo"), ("Pet?", "none")))
    update = json.dumps({"memory": [{"id": "0", "text": "city is Oslo", "event": "UPDATE"}]})
    delete = json.dumps({"memory": [{"id": "2", "event": "DELETE"}]})
    assert manage(arena, ADD, update, ADD, delete, NOOP) == [
        "add",
        "update",
        "add",
        "delete",
        "noop",
    ]
    assert shown(arena, "answer_agent_0") == ["city is Oslo"]
    (memory,) = arena.view("answer_agent_0").fields["memories"]
    assert memory["id"] == "0" and memory["rendered"] == "day 1: city is Oslo"
    assert arena.bank.entries["0"].old == ("city is Rome",)
    answer(arena, "Oslo", "unknown")
    assert arena.paid[MANAGER] == 0.5
    fractions = {
        name: arena.metrics[f"share_{name}"] for name in ("add", "update", "delete", "noop")
    }
    assert fractions == {"add": 0.4, "update": 0.2, "delete": 0.2, "noop": 0.2}
    assert arena.metrics["bank_size"] == 1 and arena.metrics["malformed_operations"] == 0


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (None, "malformed"),
        ("ADD", "not_json"),
        ('{"event": "ADD", "event": "NOOP"}', "not_json"),
        ("[" * 100_000, "not_json"),
        ("1" * 10_000, "not_json"),
        ("7", "bad_form"),
        ('{"event": "ADD", "reason": "because"}', "bad_form"),
        ('{"event": "ADD", "text": 7}', "bad_form"),
        ('{"memory": {"event": "ADD"}, "more": 1}', "bad_form"),
        ('{"text": "no event"}', "bad_form"),
        ('{"event": "add"}', "unknown_event"),
        ('{"event": "DELETE"}', "no_id"),
        ('{"event": "UPDATE", "id": ""}', "no_id"),
        ('{"event": "DELETE", "id": "77"}', "unknown_id"),
        (
            '{"event": "UPDATE", "id": "1", "text": "of Bob"}',
            "unknown_id",
        ),  # not shown to the manager
        ('{"event": "ADD", "id": "0"}', "id_taken"),
        ('{"event": "ADD", "text": "' + "x" * 1001 + '"}', "too_long"),
        ('[{"event": "ADD"}, {"event": "ADD"}]', "several_operations"),
        ('{"event": "ADD"}', "full"),
    ],
)
def test_an_invalid_operation_has_a_verdict_and_keeps_the_bank(
    action: str | None, verdict: str
) -> None:
    facts = said("first") + said("of Bob", speaker="Bob") + said("third")
    arena = begun(facts, asked(("Q?", "a")), malformed_operation=-0.25, capacity=2)
    assert manage(arena, ADD, ADD) == ["add", "add"]
    before = list(arena.bank.entries.values())
    assert manage(arena, action) == [verdict]
    assert list(arena.bank.entries.values()) == before
    assert arena.paid[MANAGER] == -0.25
    answer(arena, "a")
    assert arena.paid[MANAGER] == 0.75 and arena.metrics["malformed_operations"] == 1 / 3


@pytest.mark.parametrize(
    ("earlier", "settings", "words"),
    [
        (["one", "two"], {"capacity": 1}, r"task t: fact 1 does not fit into the bank \(full\)"),
        (["x" * 1001], {}, r"task t: fact 0 does not fit into the bank \(too_long\)"),
    ],
)
def test_earlier_facts_that_do_not_fit_are_refused(
    earlier: list[str], settings: dict[str, Any], words: str
) -> None:
    payload = {
        "earlier": said(*earlier),
        "facts": said("new"),
        "questions": asked(("Q?", "a")),
    }
    with pytest.raises(ValueError, match=words):
        raw_env(**settings).begin(Task(id="t", payload=payload), seed=0)


def test_several_operations_are_done_together_or_not_at_all() -> None:
    arena = begun(said("one", "two", "three"), asked(("Q?", "a")), most_operations=2)
    swap = '[{"event": "DELETE", "id": "0"}, {"event": "ADD"}, {"event": "NONE", "id": "5"}]'
    half = '[{"event": "ADD"}, {"event": "DELETE", "id": "9"}]'
    assert manage(arena, ADD, half, swap) == ["add", "unknown_id", "several"]
    assert [entry.text for entry in arena.bank.entries.values()] == ["three"]


def test_answers_name_the_memories_that_they_use() -> None:
    arena = begun(said("one", "two"), asked(("Q?", "a")))
    manage(arena, ADD, ADD)
    action = json.dumps({"answer": "a", "memories": ["1", "8", "9"]})
    arena.play_stage({"answer_agent_0": action})
    notes = arena.notes["answer_agent_0"]
    assert (notes["memories_selected"], notes["memories_unknown"]) == (1, 2)
    assert notes["verdict"] == "correct" and arena.paid["answer_agent_0"] == 1.0


@pytest.mark.parametrize(
    "action",
    [
        None,
        "Rome",
        "[]",
        '{"answer": "Rome"}',
        '{"answer": " ", "memories": []}',
        '{"answer": 7, "memories": []}',
        '{"answer": "Rome", "memories": "3"}',
        '{"answer": "Rome", "memories": [3]}',
        "{" * 100_000,
    ],
)
def test_an_invalid_answer_is_malformed(action: str | None) -> None:
    arena = begun(said("x"), asked(("Q?", "Rome")), malformed_answer=-1.0)
    manage(arena, NOOP)
    arena.play_stage({"answer_agent_0": action})
    assert arena.notes["answer_agent_0"]["verdict"] == "malformed"
    assert arena.paid == {**arena.paid, "answer_agent_0": -1.0, MANAGER: 0.0}


def test_shown_memories_are_divided_equally_among_the_speakers() -> None:
    facts = said(*(f"tea {n}" for n in range(6))) + said("tea b", "rain b", speaker="Bob")
    arena = begun(facts, asked(("tea?", "a")), memories=5, retrieved=2)
    manage(arena, *[ADD] * 5)
    assert shown(arena, MANAGER) == ["tea 4", "tea 3"], "of equal matches the later ones"
    manage(arena, *[ADD] * 3)
    assert shown(arena, "answer_agent_0") == ["tea 5", "tea 4", "tea 3", "tea b", "rain b"]


def test_entries_of_earlier_facts_do_not_count_as_operations() -> None:
    payload = {
        "earlier": said("Ann lives in Rome"),
        "facts": said("Ann has a cat"),
        "questions": [{"question": "Where?", "answer": "Rome", "evidence": [0]}],
    }
    arena = raw_env()
    arena.begin(Task(id="t", payload=payload), seed=0)
    assert shown(arena, MANAGER) == ["Ann lives in Rome"]
    manage(arena, ADD)
    answer(arena, "Rome")
    assert arena.metrics["share_add"] == 1.0 and arena.metrics["bank_size"] == 2
    assert arena.metrics["evidence_shown"] == 1.0


@pytest.mark.parametrize(("facts", "questions"), [([], asked(("Q?", "a"))), (said("x"), [])])
def test_a_dialogue_with_nothing_to_learn_is_refused(facts: Any, questions: Any) -> None:
    with pytest.raises(ValueError, match=r"the dialogue has no (facts|questions)"):
        begun(facts, questions)


def played(arena: Memory) -> Memory:
    manage(arena, ADD, '{"event": "UPDATE", "id": "0", "text": "both"}')
    return arena


def test_forks_pickles_and_replays() -> None:
    facts, questions = said("one", "two", "three"), asked(("Q?", "a"))
    arena = played(begun(facts, questions))
    twin = arena.fork()
    assert isinstance(twin, Memory) and twin.retriever is arena.retriever
    manage(twin, '{"event": "DELETE", "id": "0"}')
    assert not twin.bank.entries and arena.bank.entries["0"].text == "both"
    loaded = pickle.loads(pickle.dumps(arena))
    assert loaded.retriever is None
    loaded.retriever = BM25()
    for each in (arena, loaded):
        manage(each, ADD)
        answer(each, "a")
    assert loaded.paid == arena.paid and loaded.bank == arena.bank
    history, paid, entries = list(arena.history), dict(arena.paid), dict(arena.bank.entries)
    arena.replay(history)
    assert arena.paid == paid and arena.bank.entries == entries


@pytest.mark.parametrize("length", [1_000_000, 300])
def test_hostile_text_changes_nothing_and_raises_nothing(length: int) -> None:
    rng = Random(0)
    noise = "".join(map(chr, rng.choices(range(0x110000), k=length)))
    arena = begun(said(noise[:3000], "x", "x"), asked(("Q?", "a"), (noise[:500], "b")))
    text = json.dumps({"event": "ADD", "text": noise[:900] + "\ud800"})
    assert manage(arena, noise, text, ADD)[:2] == ["not_json", "add"]
    arena.play_stage(
        {
            "answer_agent_0": noise,
            "answer_agent_1": json.dumps({"answer": noise[:50_000], "memories": [noise[:9]]}),
        }
    )
    assert arena.finished and arena.paid[MANAGER] == 0.0


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"answer_agents": 0}, {"memories": 0}, {"capacity": -1}, {"outcome": "bleu"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            raw_env(**wrong)


def test_without_a_manager_every_fact_is_an_entry() -> None:
    facts, questions = said("Ann lives in Rome", "Ann has a cat"), asked(("Where?", "Rome"))
    arena = begun(facts, questions, manager=False, answer_agents=2)
    assert arena.possible_agents == ["answer_agent_0", "answer_agent_1"]
    assert arena.stage == ("answer_agent_0",)
    assert sorted(shown(arena, "answer_agent_0")) == ["Ann has a cat", "Ann lives in Rome"]
    answer(arena, "Rome")
    assert arena.finished and arena.paid["answer_agent_0"] == 1.0
    assert dict(arena.metrics) == {"exact_match": 1.0, "f1": 1.0, "bank_size": 2.0}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"capacity": 3}, "capacity is 0"), ({"reader": TinyReader()}, "no agent is left")],
)
def test_settings_that_need_a_manager(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        raw_env(manager=False, **settings)
