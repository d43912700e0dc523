"""Tests of attacked answers: a solver answers, is challenged, and answers again."""

import json
import pickle
import re
from collections.abc import Mapping
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.questions.attacked import (
    ADVERSARY,
    CLAIM,
    SOLVER,
    AttackedAnswers,
    attacked_view,
    env,
    named,
    raw_env,
)
from arenas.questions.attacked_demonstrations import AttackDemonstrations
from arenas.questions.comparisons import comparisons, is_held_out
from roles.debater import Debater
from roles.player import Player
from selfplay.types import Task

TASK = Task(id="t", payload={"question": "2 + 3", "answer": "5", "wrong": "6"})


def begun(**settings: Any) -> AttackedAnswers:
    arena = raw_env(**settings)
    arena.begin(TASK, seed=0)
    return arena


def said(answer: str) -> str:
    return json.dumps({"answer": answer, "argument": "so"})


def play(arena: AttackedAnswers, first: str | None, last: str | None, challenge: str = "") -> None:
    arena.play_stage({SOLVER: first})
    if arena.stage == (ADVERSARY,):
        arena.play_stage({ADVERSARY: challenge})
    arena.play_stage({SOLVER: last})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=60)
    api_test(env(challenger="none"), num_cycles=60)
    seed_test(raw_env, num_cycles=20)
    made: Any = pettingzoo.make("aec", "selfplay/attacked_answers_v0")
    made.reset(seed=1)
    assert made.agents == [SOLVER, ADVERSARY]


@pytest.mark.parametrize(
    ("first", "last", "opposed", "spoiled"),
    [("5", "5", -1, 0), ("5", "7", 0, 1), ("7", "5", -1, -1), ("7", "8", 0, 0), ("5", "", 0, 1)],
)
def test_pay_by_hand(first: str, last: str, opposed: float, spoiled: float) -> None:
    for pay, adversary in (("opposed", opposed), ("spoiled", spoiled), ("none", 0)):
        arena = begun(adversary_pay=pay)
        play(arena, said(first), said(last), "no, it is 7.")
        assert arena.finished
        assert arena.paid == {SOLVER: float(last == "5"), ADVERSARY: adversary}
    assert arena.metrics["first_accuracy"] == (first == "5")
    assert arena.metrics["spoiled"] == (first == "5" != last)
    assert arena.metrics["corrections"] == (last == "5" != first)
    assert arena.metrics["true_challenge"] == 0.0


def test_following_is_measured_if_a_challenge_names_another_answer() -> None:
    for first, last, followed in (("5", "7", 1.0), ("5", "5", 0.0), ("5", "8", 0.0)):
        arena = begun()
        play(arena, said(first), said(last), "it is 7")
        assert arena.metrics["followed"] == followed
    arena = begun()
    play(arena, said("7"), said("7"), "it is 7.0")
    assert "followed" not in arena.metrics
    assert named("I think it is 7!") == "7" and named("  ") == named("") == ""


@pytest.mark.parametrize(("challenger", "claim"), [("wrong", "6"), ("right", "5"), ("none", "")])
def test_a_rule_may_challenge(challenger: str, claim: str) -> None:
    arena = begun(challenger=challenger)
    assert arena.possible_agents == [SOLVER] and arena.messengers() == ()
    arena.play_stage({SOLVER: said("4")})
    fields = arena.view(SOLVER).fields
    assert fields["challenge"] == (CLAIM + claim if claim else "") and fields["again"]
    arena.play_stage({SOLVER: said("5")})
    assert arena.paid == {SOLVER: 1.0} and arena.metrics["corrections"] == 1.0
    assert arena.metrics.get("true_challenge") == {"6": 0.0, "5": 1.0}.get(claim)


@pytest.mark.parametrize(("challenger", "true"), [("wrong", 0.0), ("right", 1.0)])
def test_a_challenge_of_several_words_is_one_answer(challenger: str, true: float) -> None:
    payload = {"question": "Where?", "answer": "Albany City", "wrong": "New York"}
    arena = raw_env(challenger=challenger)
    arena.begin(Task(id="t", payload=payload), seed=0)
    claim = payload["answer" if challenger == "right" else "wrong"]
    arena.play_stage({SOLVER: said("Rome")})
    arena.play_stage({SOLVER: said(claim)})
    assert arena.metrics["true_challenge"] == true and arena.metrics["followed"] == 1.0
    assert named("it is Rome, no: it is New York.") == "New York"


def test_each_agent_sees_the_earlier_moves() -> None:
    arena = begun()
    assert arena.view(SOLVER).text == "2 + 3" and arena.messengers() == [SOLVER]
    arena.play_stage({SOLVER: said("5")})
    assert arena.messengers() == [ADVERSARY]
    assert arena.view(ADVERSARY).text == "2 + 3 | 5"
    arena.play_stage({ADVERSARY: "it is 7"})
    assert arena.view(SOLVER).text == "2 + 3 | 5 | it is 7" and arena.messengers() == ()
    assert arena.view(SOLVER) == attacked_view(
        "2 + 3", answer="5", argument="so", challenge="it is 7", again=True
    )


@pytest.mark.parametrize("text", [None, "", "{}", "[" * 100_000, '{"answer": 1}', "\ud800"])
def test_moves_without_an_answer(text: str | None) -> None:
    arena = begun(malformed=-0.5)
    arena.play_stage({SOLVER: text})
    assert arena.notes[SOLVER]["verdict"] == "malformed"
    assert arena.view(ADVERSARY).text == "2 + 3 | nothing"
    arena.play_stage({ADVERSARY: None})
    assert arena.notes[ADVERSARY]["verdict"] == "malformed"
    arena.play_stage({SOLVER: text})
    assert arena.finished and arena.paid == {SOLVER: -1.0, ADVERSARY: -0.5}


def test_forks_pickles_replays_and_hostile_text() -> None:
    noise = "".join(map(chr, Random(0).choices(range(0x110000), k=1_000_000)))
    arena = begun()
    arena.play_stage({SOLVER: said("5")})
    arena.play_stage({ADVERSARY: noise})
    assert len(arena.challenge) <= 400
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    loaded.verifier = arena.verifier  # a service, which pickles leave out
    for each in (arena, twin, loaded):
        assert isinstance(each, AttackedAnswers)
        each.play_stage({SOLVER: said(noise)})
    assert arena.paid == twin.paid == loaded.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


def test_canonical_answers_are_the_solvers() -> None:
    arena = begun()
    assert arena.canonical_answer(TASK, SOLVER, said("5.0")) == "=5"
    assert arena.canonical_answer(TASK, ADVERSARY, "it is 7") == ""


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_roles_show_the_challenge(style: str) -> None:
    arena = begun()
    solver, adversary = Debater(game="attacked", style=style), Player(game="adversary", style=style)
    first = str(solver.prompt(arena.view(SOLVER))[0]["content"])
    arena.play_stage({SOLVER: solver.parse("because <answer>55</answer>")})
    attack = str(adversary.prompt(arena.view(ADVERSARY))[0]["content"])
    arena.play_stage({ADVERSARY: "it is 77"})
    last = str(solver.prompt(arena.view(SOLVER))[0]["content"])
    assert "2 + 3" in first and "55" not in first
    assert "2 + 3" in attack and "55" in attack
    assert all(word in last for word in ("2 + 3", "55", "it is 77"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"challenger": "critic"}, "challenger is one of adversary, wrong, right, none"),
        ({"adversary_pay": "team"}, "adversary_pay is one of"),
        ({"answer_length": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        raw_env(**settings)


def test_a_rule_without_its_answer_is_refused() -> None:
    task = Task(id="t", payload={"question": "2 + 3", "answer": "5"})
    raw_env(challenger="right").begin(task, 0)
    with pytest.raises(ValueError, match="task t: challenger=wrong needs the answer `wrong`"):
        raw_env(challenger="wrong").begin(task, 0)


def test_a_comparison_names_a_wrong_answer() -> None:
    for task in comparisons(count=200):
        assert task.payload["wrong"] in task.payload["numbers"]
        assert task.payload["wrong"] != task.payload["answer"]


def test_demonstrations_have_the_fractions_of_the_settings() -> None:
    shown = AttackDemonstrations(right_share=0.6, true_share=0.5, kept=0.25, followed=0.5)
    counts = dict.fromkeys(("first", "right", "attacks", "true", "last", "kept", "followed"), 0)
    for number, each in enumerate(shown.stream(Random(0), 1.0)):
        if number == 6000:
            break
        fields = each.observation.fields
        numbers = sorted(map(int, re.findall(r"\d+", fields["question"])))
        assert not is_held_out(numbers)
        kinds = {"smallest": 0, "middle": 1, "largest": 2}
        (right,) = (numbers[at] for kind, at in kinds.items() if kind in fields["question"])
        if each.role == "adversary":
            wrong = fields["answer"] != str(right)
            counts["attacks"] += wrong
            counts["true"] += wrong and named(each.completion) == str(right)
            assert named(each.completion) != fields["answer"]
        elif not fields["again"]:
            counts["first"] += 1
            counts["right"] += str(right) in each.completion
        elif fields["challenge"]:
            counts["last"] += 1
            counts["kept"] += f">{fields['answer']}<" in each.completion
            counts["followed"] += f">{named(fields['challenge'])}<" in each.completion
    assert counts["right"] / counts["first"] == pytest.approx(0.6, abs=0.03)
    assert counts["true"] / counts["attacks"] == pytest.approx(0.5, abs=0.05)
    # A quarter draws a new answer, which may equal the first one or the challenge's.
    assert 0.25 < counts["kept"] / counts["last"] < 0.45
    assert 0.5 < counts["followed"] / counts["last"] < 0.65
    with pytest.raises(ValueError, match="fractions"):
        AttackDemonstrations(kept=0.7, followed=0.7)
