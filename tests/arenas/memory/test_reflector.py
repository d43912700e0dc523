"""Tests of the memory arena with reflectors, which choose the memories of answer agents."""

import json
import pickle
from random import Random
from typing import Any

import pytest
from pettingzoo.test import api_test, seed_test

from arenas.memory.arena import EXTRACTOR, MANAGER, SUMMARIZER, Memory, raw_env
from arenas.memory.dialogues import TinyReader, best_choice
from arenas.memory.reflection import ReflectionError, read_choice
from arenas.memory.retrieval import BM25
from roles.answer_agent import AnswerAgent
from roles.reflector import Reflector
from selfplay.types import InvalidAction, Observation
from tests.helpers.dialogues import ADD, asked, begun, manage, said

FACTS = said("pet is a cat", "pet is now a dog", "it rains", "job is nurse")
QUESTIONS = asked(("pet?", "dog"), ("job?", "nurse"))
REPLACE = '{"event": "UPDATE", "id": "0"}'


def dialogue(**settings: Any) -> Memory:
    return begun(
        FACTS, QUESTIONS, **{"manager": False, "reflector": True, "answer_agents": 2, **settings}
    )


def choose(arena: Memory, *choices: list[str] | None) -> list[str]:
    actions = [None if c is None else json.dumps({"memories": c}) for c in choices]
    arena.play_stage(dict(zip(arena.stage, actions, strict=True)))
    return [str(arena.notes[f"reflector_{n}"]["verdict"]) for n in range(len(choices))]


def answer(arena: Memory, *answers: tuple[str, list[str]] | None) -> None:
    actions = [a and json.dumps({"answer": a[0], "memories": a[1]}) for a in answers]
    arena.play_stage(dict(zip(arena.stage, actions, strict=True)))


def shown(arena: Memory, agent: str) -> list[str]:
    return [memory["id"] for memory in arena.view(agent).fields["memories"]]


def paid(arena: Memory, role: str = "reflector") -> list[float]:
    return [arena.paid[f"{role}_{number}"] for number in range(2)]


def test_conformance() -> None:
    api_test(raw_env(reflector=True), num_cycles=40)
    api_test(raw_env(reflector=True, extractor=True, manager=False, answer_agents=2), num_cycles=40)
    seed_test(lambda: raw_env(reflector=True), num_cycles=10)


def test_the_answer_agent_sees_the_choice_in_its_order_and_nothing_else() -> None:
    arena = dialogue(kept=3)
    assert arena.stage == ("reflector_0", "reflector_1")
    seen = arena.view("reflector_0")
    assert seen.fields["question"] == "pet?" and seen.fields["kept"] == 3
    assert sorted(shown(arena, "reflector_0")) == ["0", "1", "2", "3"]
    assert arena.view("answer_agent_0").text == "wait"
    assert choose(arena, ["3", "1"], []) == ["chosen", "none_chosen"]
    assert arena.stage == ("answer_agent_0", "answer_agent_1")
    assert shown(arena, "answer_agent_0") == ["3", "1"] and shown(arena, "answer_agent_1") == []
    assert "cat" not in str(arena.view("answer_agent_0")), "the memory was not chosen"
    assert set(arena.view("answer_agent_0").fields) == {"question", "memories"}
    assert arena.view("reflector_0").text == "wait", "reflectors do not see the answers"


def test_citations_pay_one_and_minus_one() -> None:
    arena = dialogue()
    choose(arena, ["1", "2", "0"], ["3"])
    answer(arena, ("a cat", ["0"]), ("nurse", ["3", "9", "1"]))
    # Of three entries one is cited: (1 - 1 - 1) / 3, although the answer is wrong. Then 1 of 1.
    assert paid(arena) == [pytest.approx(-1 / 3), 1.0]
    assert paid(arena, "answer_agent") == [0.0, 1.0]
    assert arena.finished and arena.metrics["memories_kept"] == 2.0
    assert arena.metrics["kept_cited"] == 0.5 and arena.metrics["malformed_reflections"] == 0.0


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("citations", [0.0, 1.0]), ("right_citations", [-1.0, 1.0]), ("outcome", [0.0, 1.0])],
)
def test_the_settings_of_reflector_pay(rule: str, expected: list[float]) -> None:
    arena = dialogue(reflector_pay=rule)
    choose(arena, ["0", "2"], ["3"])
    answer(arena, ("a cat", ["0"]), ("nurse", ["3"]))
    assert paid(arena) == expected


def test_no_choice_earns_nothing_and_an_invalid_answer_cites_nothing() -> None:
    arena = dialogue()
    choose(arena, [], ["3", "0"])
    answer(arena, ("dog", []), None)
    assert paid(arena) == [0.0, -1.0]


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (None, "malformed"),
        ("[3]", "bad_form"),
        ("3 and 1", "not_json"),
        ("[" * 100_000, "not_json"),
        ('{"memories": "3"}', "bad_form"),
        ('{"memories": [3]}', "bad_form"),
        ('{"memories": ["3", "3"]}', "bad_form"),
        ('{"memories": ["3"], "answer": "x"}', "bad_form"),
        ('{"memories": ["7"]}', "unknown_id"),
        ('{"memories": ["\\ud800"]}', "unknown_id"),
        ('{"memories": ["0", "1", "2"]}', "several_memories"),
    ],
)
def test_an_invalid_action_leaves_the_choice_to_the_retriever(
    action: str | None, verdict: str
) -> None:
    arena = dialogue(kept=2, malformed_reflection=-0.5)
    first = shown(arena, "reflector_0")[:2]
    arena.play_stage({"reflector_0": action, "reflector_1": '{"memories": []}'})
    assert arena.notes["reflector_0"]["verdict"] == verdict
    assert shown(arena, "answer_agent_0") == first
    answer(arena, ("dog", first), ("x", []))
    assert paid(arena) == [-0.5, 0.0], "citations of the retriever's choice earn nothing"
    assert arena.metrics["malformed_reflections"] == 0.5
    with pytest.raises(ReflectionError, match=verdict):
        read_choice(action, known=["0", "1", "2", "3"], most=2)


def test_more_questions_than_agents_are_reflected_on_in_turn() -> None:
    arena = begun(FACTS, asked(*((f"Q{n}?", "a") for n in range(3))), manager=False,
                  reflector=True, answer_agents=2)  # fmt: skip
    stages = []
    while not arena.finished:
        stages.append(arena.stage)
        choose(arena, *[["0"]] * len(arena.stage))
        stages.append(arena.stage)
        answer(arena, *[("a", ["0"])] * len(arena.stage))
    assert [len(stage) for stage in stages] == [2, 2, 1, 1]
    assert paid(arena) == [2.0, 1.0] and arena.metrics["memories_kept"] == 1.0


def test_all_roles_together() -> None:
    arena = begun(said("I have a cat. What a day."), asked(("pet?", "cat")), extractor=True,
                  reflector=True)  # fmt: skip
    arena.play_stage({EXTRACTOR: '{"facts": ["Ann has a cat", "the day is long"]}'})
    manage(arena, ADD, ADD)
    assert arena.stage == ("reflector_0",)
    choose(arena, ["0"])
    answer(arena, ("cat", ["0"]))
    assert arena.finished
    got = {agent: arena.paid[agent] for agent in (EXTRACTOR, MANAGER, "reflector_0")}
    assert got == {EXTRACTOR: 1.0, MANAGER: 1.0, "reflector_0": 1.0}


def test_both_reflections_of_rmm_together() -> None:
    turns = [
        {"text": "Ann's pet is cat.", "speaker": "Ann", "time": "day 1"},
        {"text": "It rains.", "speaker": "Ann", "time": "day 1"},
        {"text": "Ann's pet is now dog.", "speaker": "Ann", "time": "day 2"},
    ]
    arena = begun(turns, asked(("What is Ann's pet?", "dog")), summarizer=True,
                  operations=["ADD", "UPDATE"], reflector=True)  # fmt: skip
    written = [("Ann's pet is cat.", 0), ("It rains.", 1)], [("Ann's pet is now dog.", 0)]
    for session, operations in zip(written, [(ADD, ADD), (REPLACE,)], strict=True):
        listed = [{"summary": text, "reference": [place]} for text, place in session]
        arena.play_stage({SUMMARIZER: json.dumps({"extracted_memories": listed})})
        manage(arena, *operations)
    assert arena.stage == ("reflector_0",)
    assert shown(arena, "reflector_0") == ["0", "1"], "the merged entry is the nearest one"
    choose(arena, ["0", "1"])
    answer(arena, ("dog", ["0"]))
    assert arena.finished
    got = {agent: arena.paid[agent] for agent in (SUMMARIZER, MANAGER, "reflector_0")}
    assert got == {SUMMARIZER: 1.0, MANAGER: 1.0, "reflector_0": 0.0}, "one of two is cited"
    assert arena.metrics["kept_cited"] == 0.5 and arena.metrics["share_update"] == 1 / 3


def test_random_text_raises_nothing() -> None:
    rng = Random(0)
    noise = "".join(map(chr, rng.choices(range(0x110000), k=1_000_000)))
    arena = dialogue()
    arena.play_stage({"reflector_0": noise, "reflector_1": json.dumps({"memories": [noise[:99]]})})
    arena.play_stage({"answer_agent_0": noise, "answer_agent_1": noise[:9]})
    assert arena.finished and paid(arena) == [0.0, 0.0]


def test_forks_pickles_and_replays() -> None:
    arena = dialogue()
    choose(arena, ["1"], ["3"])
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    loaded.retriever = BM25()
    assert isinstance(twin, Memory)
    answer(twin, ("dog", []), ("nurse", []))
    for each in (arena, loaded):
        answer(each, ("dog", ["1"]), ("nurse", ["3"]))
    assert loaded.paid == arena.paid and paid(arena) == [1.0, 1.0] and paid(twin) == [-1.0, -1.0]
    history, paid_before, metrics = list(arena.history), dict(arena.paid), dict(arena.metrics)
    arena.replay(history)
    assert (arena.paid, arena.metrics) == (paid_before, metrics)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="reflector_pay is one of citations, right_citations, out"):
        raw_env(reflector=True, reflector_pay="cited")
    with pytest.raises(ValueError, match="kept is at least 1, not 0"):
        raw_env(reflector=True, kept=0)
    with pytest.raises(ValueError, match="a reflector is paid by answer agents"):
        raw_env(reflector=True, reader=TinyReader())


@pytest.mark.parametrize(
    ("marker", "text", "named"),
    [
        ("", "[3][0.1]", ["3", "0.1"]),
        ("", " [3], [1]\n", ["3", "1"]),
        ("", "None", []),
        ("**Memories:**", "The later one holds [1].\n**Memories:** [3]", ["3"]),
        ("", "", None),
        ("", "none [3]", None),
        ("", "[3] because", None),
        ("**Memories:**", "[3]", None),
        ("**Memories:**", "**Memories:** [3] **Memories:** [1]", None),
        ("", "[" * 900_000, None),
    ],
)
def test_the_role_reads_ids(marker: str, text: str, named: list[str] | None) -> None:
    role = Reflector(style="terse", marker=marker)
    if named is None:
        with pytest.raises(InvalidAction, match=r"no_choice|several_choices"):
            role.parse(text)
    else:
        assert role.parse(text) == json.dumps({"memories": named})


def test_the_prompts_show_question_and_entries() -> None:
    arena = dialogue(kept=2)
    seen = arena.view("reflector_1")
    (terse,) = Reflector(style="terse").prompt(seen)
    assert terse["content"].startswith("Choose\njob?\njob is nurse [3]\n")
    (full,) = Reflector().prompt(seen)
    assert "[3] day 3: job is nurse" in full["content"] and "at most\n2, the" in full["content"]
    choose(arena, ["0"], [])
    (none,) = AnswerAgent().prompt(arena.view("answer_agent_1"))
    assert "There are no memories." in none["content"]
    (empty,) = Reflector().prompt(
        Observation(fields={"question": "pet?", "memories": [], "kept": 2})
    )
    assert "There are no memories." in empty["content"]


def test_the_best_choice_is_the_newest_statement() -> None:
    texts = ("Ann's pet is cat.", "Ann's pet is now dog.", "Bob's pet is owl.", "It rains.")
    memories = [{"id": str(n), "text": text} for n, text in enumerate(texts)]
    assert best_choice("What is Ann's pet?", memories[::-1]) == ["1"]
    assert best_choice("What is Bob's pet?", memories) == ["2"]
    assert best_choice("What is Ann's job?", memories) == best_choice("Job?", memories) == []
    denied = [*memories, {"id": "10", "text": "Ann's pet is not dog."}]
    assert best_choice("What is Ann's pet?", denied) == []
