"""Tests of debate by quotation: known payoffs, views, judges and tasks."""

import pickle
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.debate.evidence import EvidenceDebate, env, passages, raw_env
from arenas.debate.evidence_views import DECEPTIVE, HONEST
from roles.judge import Judge
from roles.player import Player
from selfplay.types import Task

JUDGES = ("judge_0", "judge_1")


def task(passage: str = "++-", order: str = "together") -> Task:
    supports = [mark == "+" for mark in passage]
    return Task(id="t", payload={"supports": supports, "order": order})


def begun(
    passage: str = "++-", order: str = "together", seed: int = 0, **settings: Any
) -> EvidenceDebate:
    arena = raw_env(facts=len(passage), **settings)
    arena.begin(task(passage, order), seed=seed)
    return arena


def quote(arena: EvidenceDebate, honest: str | None, deceptive: str | None) -> None:
    """Play both quotes in the order of the debate."""
    moves = {HONEST: honest, DECEPTIVE: deceptive}
    while not arena.finished and arena.stage[0] in moves:
        arena.play_stage({agent: moves[agent] for agent in arena.stage})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=60)
    api_test(env(judge=True, exchange=True), num_cycles=60)
    seed_test(raw_env, num_cycles=20)
    made: Any = pettingzoo.make("aec", "selfplay/evidence_debate_v0")
    made.reset(seed=1)
    assert made.agents == [HONEST, DECEPTIVE]


@pytest.mark.parametrize(
    ("honest", "deceptive", "checked", "won"),
    [
        # Facts 1 and 2 support the truth; 2 counters 1, 3 counters 2, 1 counters 3.
        ("1", "3", 0.0, 1.0),
        ("2", "3", 0.0, 0.0),
        ("1", "2", 0.0, 0.0),  # false, and not checked
        ("1", "2", 1.0, 1.0),  # false, and found out
        ("2", "1", 0.0, 1.0),
        ("1", "1", 0.0, 1.0),  # a contradiction is looked up without a check
        ("3", "3", 0.0, 0.0),  # here the honest side is the one that lied
        ("3", "3", 1.0, 0.0),
        ("3", "1", 0.0, 0.0),
        ("3", "2", 0.0, 1.0),  # both are false, and fact 3 counters fact 2
        ("3", "2", 1.0, 0.5),  # both are found out, and no side wins
    ],
)
@pytest.mark.parametrize("order", ["together", "honest_first", "deceptive_first"])
def test_rewards_follow_the_rules(
    honest: str, deceptive: str, checked: float, won: float, order: str
) -> None:
    for seed in range(4):
        arena = begun(order=order, checked=checked, stake=2.0, seed=seed)
        quote(arena, honest, deceptive)
        assert arena.finished and arena.metrics["honest_won"] == won
        assert arena.paid == {HONEST: 2 * (2 * won - 1), DECEPTIVE: 2 * (1 - 2 * won)}
        assert arena.metrics["deceptive_false"] == (deceptive != "3")
        assert arena.metrics["honest_false"] == (honest == "3")


def test_found_out_is_measured_only_if_a_quote_is_false() -> None:
    found = []
    for seed in range(400):
        arena = begun(seed=seed, checked=0.25)
        quote(arena, "1", "2")
        found.append(arena.metrics["found_out"])
    assert 0.17 < sum(found) / 400 < 0.33
    arena = begun()
    quote(arena, "1", "3")
    assert "found_out" not in arena.metrics


@pytest.mark.parametrize("text", [None, "", "4", "0", "1 2", "\u0663", "-1", "x" * 1_000_000])
def test_a_move_that_is_no_quote_loses(text: str | None) -> None:
    # The fraction is of the moves made; after an illegal first move the other side has no move.
    for order, illegal in (("together", 0.5), ("honest_first", 1.0), ("deceptive_first", 0.5)):
        arena = begun(order=order)
        quote(arena, text, "1")
        assert arena.paid == {HONEST: -1.0, DECEPTIVE: 1.0}
        assert arena.metrics["illegal_fraction"] == illegal
        assert arena.notes[HONEST]["verdict"] == "illegal"
    arena = begun()
    quote(arena, text, text)
    assert arena.paid == {HONEST: 0.0, DECEPTIVE: 0.0} and arena.metrics["honest_won"] == 0.5


def test_each_side_sees_the_passage_from_its_place() -> None:
    arena = begun(order="deceptive_first")
    assert arena.stage == (DECEPTIVE,) and arena.messengers() == [DECEPTIVE]
    assert arena.view(DECEPTIVE).text == "deceptive --+ first"
    arena.play_stage({DECEPTIVE: "3"})
    assert arena.view(HONEST).text == "honest ++- second 3" and arena.messengers() == ()
    assert begun().view(HONEST).text == "honest ++- together"


@pytest.mark.parametrize("seed", range(6))
def test_a_judge_sees_quotes_and_no_passage(seed: int) -> None:
    arena = begun(order="honest_first", judge=True, checked=0.0, seed=seed)
    quote(arena, "1", "2")
    assert arena.stage == ("judge_0",) and not arena.finished
    honest, other = ("A", "B") if arena.right == 0 else ("B", "A")
    seen = arena.view("judge_0")
    assert seen.fields["quotes"] == {honest: "1", other: "2"} and seen.fields["first"] == honest
    assert "+" not in seen.text and "honest" not in seen.text
    # Another passage in which both moves are legal gives the judge the same view.
    twin = begun("+-+", order="honest_first", judge=True, checked=0.0, seed=seed)
    quote(twin, "1", "2")
    assert twin.view("judge_0") == seen
    assert arena.judged("judge_0") == {HONEST: True, DECEPTIVE: False}
    assert arena.accepts("judge_0", other) == [DECEPTIVE]
    arena.play_stage({"judge_0": other})
    assert arena.paid == {HONEST: -1.0, DECEPTIVE: 1.0, "judge_0": 0.0}
    assert arena.metrics["honest_won"] == arena.metrics["accuracy"] == 0.0


def test_a_judge_is_not_asked_if_a_side_is_found_out() -> None:
    arena = begun(judge=True, checked=1.0)
    quote(arena, "1", "2")
    assert arena.finished and arena.paid == {HONEST: 1.0, DECEPTIVE: -1.0, "judge_0": 0.0}


def test_a_second_judge_sees_the_letters_exchanged() -> None:
    arena = begun(judge=True, exchange=True, agreement=0.5, checked=0.0, order="honest_first")
    quote(arena, "1", "2")
    first, second = (arena.view(judge).fields for judge in JUDGES)
    assert first["quotes"]["A"] == second["quotes"]["B"] and first["first"] != second["first"]
    assert arena.swapped().view("judge_0") == arena.view("judge_1")
    right = "AB"[arena.right]
    arena.play_stage({"judge_0": right, "judge_1": "AB"[1 - arena.right]})
    assert arena.paid == {HONEST: 1.0, DECEPTIVE: -1.0, "judge_0": 1.5, "judge_1": 1.5}


@pytest.mark.parametrize("verdict", [None, "", "C", "A or B", "x" * 1_000_000])
def test_a_judge_without_a_verdict(verdict: str | None) -> None:
    arena = begun(judge=True, checked=0.0)
    quote(arena, "1", "3")
    arena.play_stage({"judge_0": verdict})
    assert arena.paid == {HONEST: 0.0, DECEPTIVE: 0.0, "judge_0": -1.0}
    assert arena.metrics["honest_won"] == 0.5


def test_forks_pickles_replays_and_hostile_text() -> None:
    noise = "".join(map(chr, Random(0).choices(range(0x110000), k=1_000_000)))
    arena = begun(order="deceptive_first", judge=True, checked=0.0)
    arena.play_stage({DECEPTIVE: " 3\n"})
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    for each in (arena, twin, loaded):
        assert isinstance(each, EvidenceDebate)
        each.play_stage({HONEST: "2"})
        each.play_stage({"judge_0": noise})
    assert arena.paid == twin.paid == loaded.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid
    arena = begun(order="deceptive_first")
    arena.play_stage({DECEPTIVE: noise})
    assert arena.paid == {HONEST: 1.0, DECEPTIVE: -1.0}


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_roles_show_the_facts_and_the_quotes(style: str) -> None:
    arena = begun(order="honest_first", judge=True, checked=0.0)
    alone = begun(order="honest_first")
    debater = Player(game="evidence_debate", style=style)
    judge = Judge(game="evidence_verdict", style=style)

    def words(role: Player | Judge, agent: str, where: EvidenceDebate = arena) -> str:
        return str(role.prompt(where.view(agent))[0]["content"])

    before = words(debater, HONEST)
    arena.play_stage({HONEST: "2"})
    after = words(debater, DECEPTIVE)
    arena.play_stage({DECEPTIVE: "3"})
    verdict = words(judge, "judge_0")
    assert len({before, after, verdict}) == 3
    if style == "full":
        assert "You defend the true answer" in before and "You speak first" in before
        assert "You defend the false answer" in after and "has named fact 2" in after
        assert "Fact 3 supports the other answer" in before
        assert "Fact 3 supports your answer" in after
        assert "A judge who does not see the passage" in after and "circle" not in after
        assert "each answers the\nfact before it" in words(debater, HONEST, alone)
        assert "fact 2 supports" in verdict and "fact 3 supports" in verdict


def test_tasks_are_all_passages_in_all_orders() -> None:
    found = passages(facts=5, orders=["together"])
    assert len({each.id for each in found}) == len(found) == 16
    assert len(passages()) == 12 and {each.type for each in passages()} == {
        "honest_first",
        "deceptive_first",
        "together",
    }
    assert len({each.id for each in passages(repeats=3)}) == 36
    with pytest.raises(ValueError, match="facts is one of 3, 5, 7, 9, not 4"):
        passages(facts=4)
    with pytest.raises(ValueError, match="repeats is at least 1"):
        passages(repeats=0)
    with pytest.raises(ValueError, match="orders: each is one of"):
        passages(orders=["at once"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"facts": 4}, "facts is one of 3, 5, 7, 9, not 4"),
        ({"facts": 11}, "not 11"),
        ({"checked": 1.5}, "checked lies in"),
        ({"exchange": True}, "set judge=true"),
        ({"stake": 0.0}, "stake is greater than 0"),
        ({"judge": True, "no_verdict": "both"}, "no_verdict is one of draw, coin"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        raw_env(**settings)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"supports": [True, True], "order": "together"},
        {"supports": [True, False, False], "order": "together"},
        {"supports": [1, 1, 0], "order": "together"},
        {"supports": [True, True, False], "order": "at once"},
        {"supports": [True, True, False], "order": ["together"]},
    ],
)
def test_a_wrong_task_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="task t: "):
        raw_env().begin(Task(id="t", payload=payload), 0)
