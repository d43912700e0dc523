"""Tests of judged questions: the pay of the three roles by hand, and judges without a score."""

import json
import pickle
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.questions.arena import PROPOSER, names_of
from arenas.questions.judged import JudgedQuestions, env, raw_env, read_score
from arenas.questions.sums import SumVerifier
from roles.tagged import Tagged
from selfplay.types import Task

ASK = Task(id="ask", type="sum", payload={"mode": "propose"})
SUM = Task(id="s", type="sum", payload={"mode": "solve", "question": "3 + 4"})
NOISE = "".join(map(chr, Random(0).choices(range(0x110000), k=100_000)))


def begun(task: Task = ASK, **settings: Any) -> JudgedQuestions:
    arena = raw_env(**{"solvers": 2, **settings})
    arena.begin(task, seed=0)
    return arena


def play(arena: JudgedQuestions, *moves: str | None) -> None:
    arena.play_stage(dict(zip(arena.stage, moves, strict=True)))


def argued(answer: str) -> str:
    return json.dumps({"answer": answer, "argument": "because"})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(proposers=0), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/judged_questions_v0", solvers=1)
    made.reset(seed=1)
    assert made.agents == [PROPOSER, "solver_0", "judge_0", "judge_1"]


def test_a_forbidden_question_is_not_asked() -> None:
    arena = begun(forbidden=names_of([SUM]))
    play(arena, "3  + 4")
    assert arena.finished and arena.notes[PROPOSER]["verdict"] == "held_out"
    assert arena.paid[PROPOSER] == 0.0 and not arena.created


def test_the_reward_of_each_role() -> None:
    arena = begun(oracle=SumVerifier())
    play(arena, "3 + 4")
    assert arena.stage == ("judge_0",)
    play(arena, "8")
    assert arena.stage == ("solver_0", "solver_1")
    play(arena, argued("7"), argued("9"))
    assert arena.stage == ("judge_1", "judge_2")
    play(arena, "10", "6/10")
    # Proposer: (quality 0.8 + difficulty 1 - (1.0 + 0.6) / 2 + form 1) / 3.
    # Solvers: 0.5 * grade + 0.5 * form.
    assert arena.paid[PROPOSER] == pytest.approx(2.0 / 3)
    assert arena.paid["solver_0"] == pytest.approx(1.0)
    assert arena.paid["solver_1"] == pytest.approx(0.8)
    assert [arena.paid[f"judge_{n}"] for n in range(3)] == [1.0, 1.0, 1.0]
    (task,) = arena.created
    assert task.payload == {"mode": "solve", "question": "3 + 4"} and task.type == "sum"
    assert (arena.metrics["attempts"], arena.metrics["solved"]) == (2, 2)
    # By the oracle one of two answers is right, and the judges accepted both.
    assert arena.metrics["true_accuracy"] == arena.metrics["judge_accuracy"] == 0.5


def test_a_poor_question_is_not_played() -> None:
    arena = begun()
    play(arena, "???")
    play(arena, "2")
    # Quality 0.2 and form 1, a third each.
    assert arena.finished and arena.paid[PROPOSER] == pytest.approx(0.4)
    assert not arena.created and arena.metrics["played"] == 0.0 and arena.paid["solver_0"] == 0.0


@pytest.mark.parametrize("verdict", [None, "", "eleven", "0", "11", "-3", "3/5", "nan", NOISE])
def test_a_judge_without_a_score_has_the_verdict_none(verdict: str | None) -> None:
    arena = begun(no_score=0.5, retries=0)
    play(arena, "3 + 4")
    play(arena, verdict)
    assert arena.notes["judge_0"]["verdict"] == "none" and arena.paid["judge_0"] == 0.0
    assert arena.metrics["quality"] == 0.5 and not arena.finished
    play(arena, argued("7"), None)
    assert arena.stage == ("judge_1",) and arena.notes["solver_1"]["verdict"] == "malformed"
    play(arena, verdict)
    assert arena.paid["solver_0"] == pytest.approx(0.75) and arena.paid["solver_1"] == 0.0
    assert arena.metrics["verdict"] == 0.0


def test_a_judge_without_a_score_is_asked_again() -> None:
    arena = begun()
    play(arena, "3 + 4")
    play(arena, "good")
    assert arena.stage == ("judge_0",) and arena.view("judge_0").fields["asked_again"]
    play(arena, "8")
    assert arena.metrics["quality"] == 0.8 and arena.paid["judge_0"] == 0.5  # at the second try
    play(arena, argued("7"), argued("9"))
    play(arena, "10", "ten")
    assert arena.stage == ("judge_2",) and not arena.view("judge_1").fields["asked_again"]
    play(arena, "2")
    assert arena.paid["judge_1"] == 1.0 and arena.paid["judge_2"] == 0.5
    assert arena.finished and not arena.left_out and arena.metrics["ungraded"] == 0.0
    assert arena.paid["solver_0"] == 1.0 and arena.paid["solver_1"] == pytest.approx(0.6)
    assert arena.metrics["verdict"] == 3 / 5


def test_ungraded_answers_and_questions_are_left_out() -> None:
    arena = begun(oracle=SumVerifier())
    play(arena, "3 + 4")
    play(arena, "10")
    play(arena, argued("7"), argued("9"))
    play(arena, None, "5")
    play(arena, None)
    assert arena.finished and arena.left_out == {"solver_0"} and arena.paid["solver_0"] == 0.0
    # The proposer's difficulty comes from the graded answer: (1 + 1 - 0.5 + 1) / 3.
    assert arena.paid[PROPOSER] == pytest.approx(2.5 / 3)
    assert arena.metrics["ungraded"] == 0.5 and arena.metrics["grade"] == 0.5
    assert arena.metrics["true_accuracy"] == 0.5 and arena.metrics["judge_accuracy"] == 1.0
    question = begun()
    play(question, "3 + 4")
    play(question, "?")
    play(question, "?")
    assert question.finished and question.left_out == {PROPOSER} and not question.created
    both = begun(retries=0)
    play(both, "3 + 4")
    play(both, "10")
    play(both, argued("7"), argued("9"))
    play(both, "?", "?")
    assert both.finished and both.left_out == {PROPOSER, "solver_0", "solver_1"}


def test_a_rule_decides_first() -> None:
    arena = begun(rule=SumVerifier())
    play(arena, "3 + 4")
    play(arena, "8")
    play(arena, argued("7"), argued("9"))
    assert arena.stage == ("judge_2",) and arena.metrics["judged_by_rule"] == 0.5
    play(arena, "4")
    assert arena.paid["solver_0"] == 1.0 and arena.paid["solver_1"] == pytest.approx(0.7)
    sure = begun(rule=SumVerifier(), solvers=1)
    play(sure, "3 + 4")
    play(sure, "8")
    play(sure, argued("7"))
    assert sure.finished and sure.paid["solver_0"] == 1.0


def test_a_rule_with_a_weight() -> None:
    arena = begun(rule=SumVerifier(), rule_use="weighted", rule_weight=0.75)
    play(arena, "3 + 4")
    play(arena, "8")
    play(arena, argued("7"), argued("9"))
    play(arena, "4", "4")
    # Grades 0.75 * 1 + 0.25 * 0.4 and 0.25 * 0.4.
    assert arena.paid["solver_0"] == pytest.approx(0.5 + 0.5 * 0.85)
    assert arena.paid["solver_1"] == pytest.approx(0.5 + 0.5 * 0.1)


def test_a_score_is_a_fraction_of_the_best() -> None:
    found = [read_score(text, 10) for text in ("1", "10", "7.5", " 7 ", "7/10", "10/10")]
    assert found == [0.1, 1.0, 0.75, 0.7, 0.7, 1.0]


def test_a_given_question_has_no_proposer_and_no_question_judge() -> None:
    arena = begun(SUM, proposers=0)
    play(arena, None, None)
    assert arena.finished and arena.metrics["grade"] == 0.0 and not arena.created
    assert arena.paid["judge_0"] == 0.0


def test_an_invalid_question_ends_the_episode() -> None:
    arena = begun()
    play(arena, None)
    assert arena.finished and arena.paid[PROPOSER] == 0.0
    assert arena.notes[PROPOSER]["verdict"] == "malformed"


def test_forks_pickles_replays_and_hostile_text() -> None:
    arena = begun(question_length=1_000_000)
    play(arena, NOISE)
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    for each in (arena, twin, loaded):
        assert isinstance(each, JudgedQuestions)
        play(each, "9")
        play(each, "[" * 90_000, argued("\ud800"))
        play(each, "3")
    assert arena.paid == twin.paid == loaded.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_judge_sees_the_question_and_the_answer(style: str) -> None:
    judge = Tagged(game="grader", style=style, opening="<score>", closing="</score>")
    arena = begun()
    play(arena, "QUESTION")
    assert "QUESTION" in judge.prompt(arena.view("judge_0"))[0]["content"]
    play(arena, judge.parse("good <score>9</score>"))
    play(arena, argued("FIRST"), argued("SECOND"))
    for agent, word in (("judge_1", "FIRST"), ("judge_2", "SECOND")):
        text = str(judge.prompt(arena.view(agent))[0]["content"])
        assert "QUESTION" in text and word in text


def test_wrong_settings_are_refused() -> None:
    for settings, said in (
        ({"least_quality": 2.0}, "lie in"),
        ({"no_score": -1.0}, "lie in"),
        ({"best_score": 0}, "at least 1"),
        ({"retries": -1}, "retries is at least 0"),
        ({"rule_weight": 1.5}, "lie in"),
        ({"rule_use": "last"}, "one of first, weighted"),
        ({"solvers": 0}, "solvers at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            raw_env(**settings)
    with pytest.raises(ValueError, match="needs proposers: 1"):
        begun(ASK, proposers=0)
