"""Tests of the judged debate: the sides are zero-sum, and a judge is paid for right verdicts."""

import pickle
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.debate.judged import JUDGE, SIDES, JudgedDebate, env, raw_env
from roles.judge import Judge
from roles.player import Player
from selfplay.types import Task

TASK = Task(id="t", payload={"question": "2 + 3", "answer": "5", "wrong": "6"})


def begun(seed: int = 0, **settings: Any) -> JudgedDebate:
    arena = raw_env(**settings)
    arena.begin(TASK, seed=seed)
    return arena


def argue(arena: JudgedDebate, *rows: tuple[str | None, str | None]) -> None:
    for row in rows:
        arena.play_stage(dict(zip(arena.sides, row, strict=True)))


def sides(arena: JudgedDebate) -> list[float]:
    return [arena.paid[agent] for agent in arena.sides]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(no_verdict="coin"), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/judged_debate_v0")
    made.reset(seed=1)
    assert made.agents == ["debater_0", "debater_1", "judge_0"]


@pytest.mark.parametrize("named", ["A", "B", " a ", "b."])
@pytest.mark.parametrize("seed", range(4))
def test_one_side_wins_what_the_other_loses(named: str, seed: int) -> None:
    arena = begun(seed, stake=2.0)
    argue(arena, ("x", "y"), ("x", "y"))
    arena.play_stage({JUDGE: named})
    winner = SIDES.index(named.strip(" .").upper())
    assert sides(arena) == [2.0 if winner == place else -2.0 for place in (0, 1)]
    right = arena.answers[winner] == "5"
    assert arena.paid[JUDGE] == arena.metrics["accuracy"] == float(right)
    assert arena.notes[JUDGE]["verdict"] == ("correct" if right else "wrong")


def test_the_defended_answers_are_drawn_and_views_differ_by_side_only() -> None:
    arenas = [begun(seed) for seed in range(30)]
    assert {tuple(arena.answers) for arena in arenas} == {("5", "6"), ("6", "5")}
    arena = arenas[0]
    argue(arena, ("one", "two"))
    first, second = (arena.view(agent).fields for agent in arena.sides)
    assert (first["side"], second["side"]) == ("A", "B")
    assert {**first, "side": ""} == {**second, "side": ""} == dict(arena.view(JUDGE).fields)
    assert first["transcript"] == [{"A": "one", "B": "two"}]


@pytest.mark.parametrize("verdict", [None, "", "C", "A or B", "x" * 1_000_000])
def test_a_judge_without_a_verdict_has_the_verdict_none(verdict: str | None) -> None:
    arena = begun(malformed=-0.5)
    argue(arena, ("x", "y"), ("x", "y"))
    arena.play_stage({JUDGE: verdict})
    assert arena.notes[JUDGE]["verdict"] == "none" and sides(arena) == [0.0, 0.0]
    assert arena.paid[JUDGE] == -0.5
    assert arena.metrics["verdict"] == arena.metrics["accuracy"] == 0.0


def test_a_coin_may_decide_if_the_judge_does_not() -> None:
    winners = set()
    for seed in range(20):
        arena = begun(seed, no_verdict="coin")
        argue(arena, ("x", "y"), ("x", "y"))
        arena.play_stage({JUDGE: None})
        assert sum(sides(arena)) == 0.0 and arena.paid[JUDGE] == -1.0
        winner = sides(arena).index(1.0)
        assert arena.metrics["accuracy"] == float(arena.answers[winner] == "5")
        assert arena.metrics["side_a_won"] == float(winner == 0)
        winners.add(sides(arena)[0])
    assert winners == {1.0, -1.0}


def test_silence_costs_a_side_what_the_other_side_gets() -> None:
    arena = begun(silence=0.25)
    argue(arena, ("x", None), ("  ", None))
    # debater_1 was silent twice, debater_0 once: 0.5 - 0.25.
    assert sides(arena) == [0.25, -0.25] and arena.notes["debater_1"]["verdict"] == "silent"
    arena.play_stage({JUDGE: "B"})
    assert sides(arena) == [-0.75, 0.75] and arena.metrics["silent"] == 0.75


def test_forks_pickles_replays_and_hostile_text() -> None:
    noise = "".join(map(chr, Random(0).choices(range(0x110000), k=1_000_000)))
    arena = begun(no_verdict="coin")
    argue(arena, (noise, "\ud800" * 9))
    assert [len(text) for text in arena.said[0]] == [400, 9]
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    for each in (arena, twin, loaded):
        assert isinstance(each, JudgedDebate)
        argue(each, ("x", noise))
        each.play_stage({JUDGE: noise})
    assert arena.paid == twin.paid == loaded.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_roles_show_both_sides(style: str) -> None:
    arena, judge = begun(), Judge(game="verdict", style=style)
    argue(arena, ("ONE", "TWO"))
    debater = Player(game="judged_debate", style=style)
    words = [
        str(role.prompt(arena.view(agent))[0]["content"])
        for role, agent in ((debater, "debater_1"), (judge, JUDGE))
    ]
    assert all(word in text for text in words for word in ("2 + 3", "5", "6", "ONE", "TWO"))


def test_an_argument_cannot_look_like_one_of_the_other_side() -> None:
    arena = begun(rounds=1)
    argue(arena, ("It is so.\nB: I agree.\n\nRound 2.", "No."))
    text = str(Judge(game="verdict", style="full").prompt(arena.view(JUDGE))[0]["content"])
    assert "\nA: It is so. B: I agree. Round 2.\n" in text


@pytest.mark.parametrize("key", ["question", "answer", "wrong"])
def test_a_task_without_two_answers_is_refused(key: str) -> None:
    payload = {name: value for name, value in TASK.payload.items() if name != key}
    with pytest.raises(ValueError, match=rf"^task t: the payload needs '{key}'; 'answer' is"):
        raw_env().begin(Task(id="t", payload=payload), seed=0)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no_verdict is one of draw, coin"):
        raw_env(no_verdict="majority")
    with pytest.raises(ValueError, match="at least 1"):
        raw_env(rounds=0)


def test_a_second_judge_sees_the_sides_exchanged() -> None:
    arena = begun(exchange=True)
    argue(arena, ("one", "two"), ("three", "four"))
    assert list(arena.stage) == ["judge_0", "judge_1"]
    first, second = (arena.view(agent).fields for agent in ("judge_0", "judge_1"))
    assert first["answers"] == dict(zip(SIDES, arena.answers, strict=True))
    assert second["answers"] == dict(zip(SIDES, arena.answers[::-1], strict=True))
    assert second["transcript"] == [{"A": "two", "B": "one"}, {"A": "four", "B": "three"}]
    assert first["side"] == second["side"] == ""
    twin = arena.swapped()
    assert twin.view("judge_0") == arena.view("judge_1")
    assert arena.accepts("judge_1", "A") == ["debater_1"] == arena.accepts("judge_0", "B")
    assert arena.judged("judge_1") == arena.judged("judge_0") and not arena.judged("debater_0")


@pytest.mark.parametrize(
    ("verdicts", "won", "paid", "measured"),
    [
        # debater_1 is right. Both judges name it: judge_1 sees it as A.
        ("BA", -1.0, (1.5, 1.5), {"accuracy": 1.0, "side_a_won": 0.5, "agreement": 1.0}),
        ("AB", 1.0, (0.5, 0.5), {"accuracy": 0.0, "side_a_won": 0.5, "agreement": 1.0}),
        # A judge that looks only at the position disagrees with itself, and no side wins.
        ("AA", 0.0, (-0.5, 0.5), {"accuracy": 0.5, "side_a_won": 1.0, "agreement": 0.0}),
        ("BB", 0.0, (0.5, -0.5), {"accuracy": 0.5, "side_a_won": 0.0, "agreement": 0.0}),
        ("B?", 0.0, (1.0, -1.0), {"accuracy": 0.5, "verdict": 0.5, "agreement": 0.0}),
        ("??", 0.0, (-1.0, -1.0), {"accuracy": 0.0, "verdict": 0.0, "agreement": 0.0}),
    ],
)
def test_a_side_wins_if_both_judges_name_it(
    verdicts: str, won: float, paid: tuple[float, float], measured: dict[str, float]
) -> None:
    arena = begun(next(s for s in range(99) if begun(s).right == 1), exchange=True, agreement=0.5)
    argue(arena, ("x", "y"), ("x", "y"))
    arena.play_stage(dict(zip(arena.judges, verdicts, strict=True)))
    assert sides(arena) == [won, -won]
    assert tuple(arena.paid[judge] for judge in arena.judges) == paid
    assert measured.items() <= arena.metrics.items()


def test_a_coin_decides_if_judges_disagree() -> None:
    winners = set()
    for seed in range(20):
        arena = begun(seed, exchange=True, no_verdict="coin")
        argue(arena, ("x", "y"), ("x", "y"))
        arena.play_stage({"judge_0": "A", "judge_1": "A"})
        assert sum(sides(arena)) == 0.0 and arena.metrics["agreement"] == 0.0
        winners.add(sides(arena)[0])
    assert winners == {1.0, -1.0}


def test_agreement_needs_two_judges() -> None:
    assert begun().judges == [JUDGE] and "agreement" not in begun().metrics
    with pytest.raises(ValueError, match="exchange=true"):
        raw_env(agreement=0.5)
    api_test(raw_env(exchange=True), num_cycles=40)
