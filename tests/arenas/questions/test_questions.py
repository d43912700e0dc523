"""Tests of questions: votes, labels and the pay of proposers, by hand."""

import json
import pickle
from collections.abc import Mapping
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.questions import verifiers
from arenas.questions.arena import (
    PROPOSER,
    Questions,
    env,
    names_of,
    question_task,
    raw_env,
    unlabelled,
)
from arenas.questions.files import read
from arenas.questions.sums import Sums, SumVerifier, sums
from arenas.questions.verifiers import Matches, Similarity, meaning
from roles.debater import Debater
from roles.tagged import Tagged
from selfplay.errors import ConfigError
from selfplay.types import InvalidAction, Task

ASK = Task(id="ask", type="sum", payload={"mode": "propose"})
SUM = Task(id="s", type="sum", payload={"question": "3 + 4"})
KNOWN = Task(id="k", type="sum", payload={"question": "3 + 4", "answer": "7"})
NOISE = "".join(map(chr, Random(0).choices(range(0x110000), k=100_000)))


def begun(task: Task = ASK, **settings: Any) -> Questions:
    arena = raw_env(**{"solvers": 4, **settings})
    arena.begin(task, seed=0)
    return arena


def argued(answer: str) -> str:
    return json.dumps({"answer": answer, "argument": "because"})


def answer(arena: Questions, *answers: str | None) -> None:
    said = [None if a is None else argued(a) for a in answers]
    arena.play_stage(dict(zip(arena.stage, said, strict=True)))


def asked(arena: Questions, *answers: str | None) -> Questions:
    arena.play_stage({PROPOSER: "3 + 4"})
    answer(arena, *answers)
    return arena


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(proposers=0, voters=2), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/questions_v0", solvers=2)
    made.reset(seed=1)
    assert made.agents == [PROPOSER, "solver_0", "solver_1"]


@pytest.mark.parametrize(
    ("answers", "paper", "code"),
    [
        (("7", "7", "5", "6"), 1.0, 0.5),  # half of them agree
        (("7", "7.0", " 7 ", "6"), 0.5, 0.25),  # three quarters: equal numbers are one vote
        (("7", "7", "7", "7"), 0.0, 0.0),
        (("7", None, "5", None), 0.5, 0.25),  # the label is the first of equally frequent answers
        ((None, None, None, None), 0.0, 0.0),
    ],
)
def test_a_challenger_is_paid_for_disagreement(
    answers: tuple[str | None, ...], paper: float, code: float
) -> None:
    arena = asked(begun(), *answers)
    assert arena.paid[PROPOSER] == pytest.approx(paper)
    released = asked(begun(proposer_pay="minority"), *answers)
    assert released.paid[PROPOSER] == pytest.approx(code)
    assert asked(begun(proposer_pay="none"), *answers).paid[PROPOSER] == 0.0


def test_the_majority_is_the_label_for_pay_and_for_the_curriculum() -> None:
    arena = asked(begun(wrong=0.1, malformed=-1.0), "5", "7", "5", None)
    assert [arena.paid[f"solver_{n}"] for n in range(4)] == [1.0, 0.1, 1.0, -1.0]
    (task,) = arena.created
    assert task.payload == {"mode": "solve", "question": "3 + 4", "answer": "5"}
    assert task.type == "sum" and task.id == question_task("x", " 3  + 4").id
    assert arena.metrics["vote_share"] == arena.metrics["solve_rate"] == 0.5
    assert (arena.metrics["attempts"], arena.metrics["solved"]) == (4, 2)
    again = begun(task)
    answer(again, "5", "7", "7", "7")
    assert [again.paid[f"solver_{n}"] for n in range(4)] == [1.0, 0.0, 0.0, 0.0]
    assert again.metrics["solved"] == 1 and again.metrics["majority_accuracy"] == 0.0


def test_without_any_answer_there_is_no_label_and_no_task() -> None:
    arena = asked(begun(), None, None, None, None)
    assert not arena.created and arena.metrics["solve_rate"] == 0.0 and arena.finished


def test_an_unlabelled_question_is_paid_by_votes_and_a_labelled_one_by_truth() -> None:
    arena = begun(SUM, proposers=0)
    answer(arena, "6", "6", "7", "6")
    assert [arena.paid[a] for a in arena.answering] == [1.0, 1.0, 0.0, 1.0]
    assert "majority_accuracy" not in arena.metrics
    arena = begun(KNOWN, proposers=0)
    answer(arena, "6", "6", "7", "6")
    assert [arena.paid[a] for a in arena.answering] == [0.0, 0.0, 1.0, 0.0]
    assert arena.metrics["solve_rate"] == 0.25 and arena.metrics["majority_accuracy"] == 0.0


def test_voters_vote_and_are_paid_nothing() -> None:
    arena = begun(SUM, proposers=0, solvers=1, voters=2)
    answer(arena, "7", "6", "6")
    assert arena.paid == {"solver_0": 0.0, "voter_0": 0.0, "voter_1": 0.0}
    assert arena.metrics["vote_share"] == pytest.approx(2 / 3)
    assert arena.metrics["solve_rate"] == 0.0


def test_voters_do_not_count_as_attempts_if_the_answer_is_known() -> None:
    arena = begun(KNOWN, proposers=0, solvers=1, voters=3)
    answer(arena, "7", "6", "6", "6")
    assert (arena.metrics["attempts"], arena.metrics["solved"]) == (1, 1)
    arena = begun(SUM, proposers=0, solvers=1, voters=3)
    answer(arena, "7", "6", "6", "6")
    assert (arena.metrics["attempts"], arena.metrics["solved"]) == (4, 3)


def test_a_verifier_judges_proposed_questions() -> None:
    arena = begun(label="verifier", verifier=SumVerifier(), proposer_pay="learnability")
    asked(arena, "6", "7", "6", "6")
    assert [arena.paid[f"solver_{n}"] for n in range(4)] == [0.0, 1.0, 0.0, 0.0]
    assert arena.paid[PROPOSER] == 0.75 and arena.metrics["solved"] == 1
    assert arena.created[0].payload == {"mode": "solve", "question": "3 + 4"}
    no_sums = dict.fromkeys(("what is 3", "07 + 1"), "no_sum")
    for question, reason in {**no_sums, "1" + " + 1" * 8: "too_many_terms"}.items():
        arena = begun(label="verifier", verifier=SumVerifier(), invalid=-1.0)
        arena.play_stage({PROPOSER: question})
        assert arena.finished and arena.notes[PROPOSER]["verdict"] == reason
        assert arena.paid[PROPOSER] == -1.0 and arena.metrics["valid_proposal"] == 0.0


def test_an_oracle_changes_only_the_metrics() -> None:
    plain, watched = (asked(begun(oracle=o), "6", "6", "7", None) for o in (None, SumVerifier()))
    assert plain.paid == watched.paid
    assert watched.metrics["label_accuracy"] == 0.0 and watched.metrics["true_accuracy"] == 0.25


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (None, "malformed"),
        ("  ", "malformed"),
        ("x" * 1001, "too_long"),
        ("1 + 1", "copied"),
        ("2  + 2", "copied"),
        ("9 + 9", "held_out"),
    ],
)
def test_invalid_questions_have_a_verdict(question: str | None, reason: str) -> None:
    payload: dict[str, Any] = {"mode": "propose", "given": {"question": "1 + 1"}}
    payload["references"] = [{"question": "2 + 2"}]
    held_out = names_of([Task(id="x", payload={"question": "9 + 9"})])
    arena = begun(Task(id="a", payload=payload), forbidden=held_out)
    arena.play_stage({PROPOSER: question})
    assert arena.finished and arena.notes[PROPOSER]["verdict"] == reason


def test_forks_pickles_replays_and_hostile_text() -> None:
    arena = begun(question_length=1_000_000)
    arena.play_stage({PROPOSER: NOISE})
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    loaded.verifier = arena.verifier
    for each in (arena, twin, loaded):
        assert isinstance(each, Questions)
        moves = [NOISE, "[" * 90_000, json.dumps({"answer": "\ud800"}), argued("7")]
        each.play_stage(dict(zip(each.stage, moves, strict=True)))
    assert arena.paid == twin.paid == loaded.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


def test_wrong_settings_are_refused() -> None:
    for settings, said in (
        ({"label": "truth"}, "label is one of majority, verifier"),
        ({"proposer_pay": "x"}, "proposer_pay is one of"),
        ({"solvers": 0}, "solvers at least 1"),
        ({"proposers": 2}, "proposers must be 0 or 1"),
        ({"answer_length": 0}, "at least 1"),
        ({"label": "verifier"}, "can check any proposed question"),
        ({"verifier": SumVerifier()}, "label: majority uses no verifier"),
    ):
        with pytest.raises(ValueError, match=said):
            raw_env(**settings)
    with pytest.raises(ValueError, match="needs proposers: 1"):
        begun(ASK, proposers=0)
    checked: list[dict[str, Any]] = [{"label": "verifier"}, {"oracle": Matches()}]
    for each in checked:
        arena = begun(SUM, proposers=0, **each)
        with pytest.raises(ConfigError, match="needs an 'answer' in every task"):
            answer(arena, "7", "7", "7", "7")


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_roles_show_the_question(style: str) -> None:
    payload = {"mode": "propose", "given": {"question": "GIVEN"}}
    easier = begun(Task(id="a", payload=payload)).view(PROPOSER)
    variant = Tagged(game="variant", style=style, opening="<question>", closing="</question>")
    assert "GIVEN" in variant.prompt(easier)[0]["content"]
    shown = {"mode": "propose", "references": [{"question": "SHOWN"}]}
    other = begun(Task(id="a", payload=shown)).view(PROPOSER)
    challenger = Tagged(game="challenger", style=style, opening="<question>", closing="</question>")
    assert "SHOWN" in challenger.prompt(other)[0]["content"]
    assert challenger.parse("so <question> 3 + 4 </question>") == "3 + 4"
    with pytest.raises(InvalidAction, match="empty"):
        challenger.parse("<question> </question>")
    seen = begun(SUM, proposers=0).view("solver_0")
    assert "3 + 4" in Debater(game="generator", style=style).prompt(seen)[0]["content"]


def test_sums_have_answers_splits_and_bounds() -> None:
    train, held_out = (sums(count=50, split=split) for split in ("train", "held_out"))
    assert not names_of(train) & names_of(held_out) and len(names_of(train)) == 50
    for task in train:
        assert SumVerifier()(task.payload["answer"], task.payload) == 1.0
        assert SumVerifier()("x", task.payload) == 0.0
    assert all("answer" not in task.payload for task in unlabelled(train))
    assert [t.payload["question"] for t in sums(count=50, labelled=False)] == [
        t.payload["question"] for t in train
    ]
    large = sums(count=50, smallest=5, largest=30)
    numbers = [int(word) for task in large for word in str(task.payload["question"]).split()[::2]]
    assert min(numbers) >= 5 and max(numbers) <= 30
    with pytest.raises(ValueError, match="smallest < largest"):
        Sums(smallest=12, largest=12)
    with pytest.raises(ValueError, match="cannot make 99 different"):
        sums(count=99, largest=3)
    with pytest.raises(ValueError, match="operations"):
        Sums(operations="/")


def test_a_question_file_is_read_strictly(tmp_path: Any) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": " 1 + 1 ", "answer": 2, "more": []}\n\n{"question": "why"}\n')
    first, second = read(path=str(path))
    assert first.payload["answer"] == "2" and first.payload["question"] == "1 + 1"
    assert "answer" not in second.payload
    assert all("answer" not in task.payload for task in read(path=str(path), labelled=False))
    path.write_text('{"question": "one\u2028two\x85three", "answer": 1}\n', encoding="utf-8")
    assert read(path=str(path))[0].payload["question"] == "one\u2028two\x85three"
    for text, said in (
        ("", "questions: .* is empty"),
        ("[" * 9000, "line 1: not JSON; one JSON object per line"),
        ("question,answer\n1 + 1,2\n", "line 1: not JSON; one JSON object per line"),
        ('[{"question": "x"}]', "line 1: each line needs a JSON object"),
        ('{"question": "x"}\n{"question": "y", "answer": NaN}', "line 2: 'answer' is nan"),
        ('{"question": "x", "answer": 1}\n{"question": "x", "answer": 2}', "line 2: .* another"),
        ("{}", "text under 'question'"),
        ('{"question": 3}', "text under 'question'"),
        ('{"question": "x", "answer": [1]}', "must be a text or a number"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read(path=str(path))
    path.write_bytes(b'{"question": "x"}\n\xff\xfe')
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        read(path=str(path))
    with pytest.raises(ConfigError, match="cannot read"):
        read(path=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("35 kg", "3.5 kg", False),
        ("$35", "$3.5", False),
        ("5%", "-5%", False),
        ("5 %", "5%", True),
        ("x-1", "x+1", False),
        ("x^2", "x2", False),
        ("x", "-x", False),
        ("2/3 cup", "23 cup", False),
        ("1,2", "12", False),
        ("1,2", "1, 2", True),
        ("1,000", "1000", True),
        ("1,000 kg", "1000 kg", True),
        ("A", "(a).", True),
        ("A", "B", False),
        ("(B)", "b", True),
        ("The Beatles!", "beatles", True),
        ("COVID-19", "COVID19", True),
        ("- yes", "Yes.", True),
        ("-5", "-5.0", True),
        ("1/2", "0.5", True),
        ("7,", "7", True),
        (".5 kg", "5 kg", False),
        ("-.5 m", ".5 m", False),
        ("-$5", "$5", False),
        ("x - 1", "x-1", True),
        ("x + 1", "x - 1", False),
        ("2x + 3", "2x - 3", False),
        ("x-y", "x+y", False),
        ("x/y", "x*y", False),
        ("(-x)", "(x)", False),
        ("x = a-1", "x = -1", False),
        ("x - -1", "x - 1", False),
        ("and/or", "and or", False),
        ("the well-known man", "wellknown man", True),
        ("x < 3", "x > 3", False),
        ("x<3.", "x < 3", True),
        ("x >= 2", "x <= 2", False),
        ("x >= 2", "x\u22652", True),
        ("x >= 2", "x > 2", False),
        ("x != y", "x == y", False),
        ("x \u2260 y", "x != y", True),
        ("x == y", "x = y", True),
        ("p & q", "p | q", False),
        ("p && q", "p \u2227 q", True),
        ("|x| + 1", "|x| - 1", False),
        ("|x|", "x", False),
        ("!p", "p", False),
        ("!p", "\u00acp", True),
        ("[0, 1)", "(0, 1]", False),
        ("[0,1)", "[0, 1).", True),
        ("[-1, 1)", "[1, 1)", False),
        ("(1, 2)", "[1, 2]", True),
        ("n!", "n", False),
        ("n! + 1", "n! - 1", False),
        ("(n + 1)!", "(n + 1)", False),
        ("Paris!", "Paris", True),
        ("It is Paris!!", "it is paris", True),
        ("Vitamin C!", "vitamin c", True),
        ("Apollo 13!", "Apollo 13", True),
        ("A+", "A-", False),
        ("A+", "A", False),
        ("A+.", "a+", True),
        ("O-", "O+", False),
        ("O- blood", "O blood", False),
        ("Na+", "Na-", False),
        ("Na+ and Cl-", "Na and Cl", False),
        ("C++", "C", False),
        ("C#", "C", False),
        ("- x", "x", False),
        ("- x", "-x", True),
        ("- 5", "-5", True),
        ("\u22125", "-5", True),
        ("- a cat", "cat", True),
        ("Paris - the capital", "Paris, the capital", True),
    ],
)
def test_an_answer_has_one_meaning_in_different_notations(one: str, other: str, same: bool) -> None:
    assert (meaning(one) == meaning(other)) is same


def test_a_score_between_0_and_1_is_paid_and_averaged() -> None:
    graded = {"label": "verifier", "verifier": Similarity(), "wrong": -0.5}
    arena = begun(KNOWN, proposers=0, solvers=2, **graded)
    answer(arena, "7", "75")  # one of two characters: 2 / 3
    assert arena.paid == {"solver_0": 1.0, "solver_1": pytest.approx(-0.5 + 1.5 * 2 / 3)}
    assert arena.metrics["solve_rate"] == pytest.approx((1 + 2 / 3) / 2)
    assert [note["verdict"] for note in arena.notes.values()] == ["correct", "correct"]


def test_a_split_without_questions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no held_out question with Sums"):
        sums(count=1, split="held_out", terms=(1, 1), smallest=1, largest=2)


def test_similarity_is_the_fraction_of_matching_characters() -> None:
    score = Similarity(longest=10)
    assert score("return 1", {"answer": "return 1"}) == 1.0
    assert score("return 2", {"answer": "return 1"}) == 14 / 16
    assert score("", {"answer": "abc"}) == 0.0
    assert score("a" * 11, {"answer": "a" * 10}) == 0.0
    for payload in ({}, {"answer": "a" * 11}):
        with pytest.raises(ConfigError, match="of at most longest=10 characters"):
            score("a", payload)
    with pytest.raises(ValueError, match="longest is at least 1"):
        Similarity(longest=0)


@pytest.mark.parametrize(
    ("score", "shown"),
    [(None, "None"), (float("nan"), "nan"), (7.0, "7.0"), (-0.5, "-0.5"), ("1", "str")],
)
def test_a_verifier_that_returns_no_score_is_named(score: Any, shown: str) -> None:
    class Odd:
        def __call__(self, answer: str, payload: Mapping[str, Any]) -> Any:
            return score

    arena = Questions(proposers=0, solvers=1, label="verifier", verifier=Odd())
    arena.begin(question_task("sum", "3 + 4", "7"), 0)
    with pytest.raises(ValueError, match=f"^verifier Odd returned {shown} for an answer; a number"):
        arena.play_stage({"solver_0": '{"answer": "7"}'})


def test_a_comparison_that_would_take_minutes_has_score_0(monkeypatch: pytest.MonkeyPatch) -> None:
    score, wanted = Similarity(), {"answer": "a" * 40}
    assert score("ab" * 20, wanted) == 0.5
    monkeypatch.setattr(verifiers, "MOST_PAIRS", 2000)
    assert score("ab" * 20, wanted) == 0.0
    assert score("a" * 40, wanted) == 1.0
