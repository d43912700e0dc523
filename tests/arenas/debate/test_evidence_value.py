"""Tests of exact values of debates by quotation, against values by hand and OpenSpiel."""

from itertools import permutations, product
from random import Random

import numpy as np
import pytest

from arenas.debate.evidence import EvidenceDebate, passages, raw_env
from arenas.debate.evidence_value import (
    ORDERS,
    Order,
    circle,
    counters,
    matrix,
    ruled_value,
    rules,
    solve,
    supports,
    value,
)
from arenas.debate.evidence_views import DECEPTIVE, HONEST
from selfplay.study.measures.exploitability import exploitability, known_game
from selfplay.study.policy_probs import ActionDistribution
from selfplay.types import role_of


@pytest.mark.parametrize("checked", [0.0, 0.25, 0.5, 1.0])
def test_values_of_three_facts_by_hand(checked: float) -> None:
    """Let c be the fraction that is checked. If the honest side is first, the lie that counters its
    quote wins unless it is checked. If the deceptive side is first, its lie is contradicted or its
    true quote is countered. If both move at once and two facts of three support the truth, the
    matrix is [[1, c], [0, 1]] for quotes 1, 2 against the true quote 3 and the lie 2, and its value
    is 1 / (2 - c). If all three support it, a lie counters one quote of three: (2 + c) / 3."""
    together = 0.75 / (2 - checked) + 0.25 * (2 + checked) / 3
    assert value(facts=3, checked=checked, order="honest_first") == pytest.approx(checked)
    assert value(facts=3, checked=checked, order="deceptive_first") == pytest.approx(1.0)
    assert value(facts=3, checked=checked, order="together") == pytest.approx(together)


def test_exactly_one_of_two_facts_counters_the_other() -> None:
    for facts in (3, 5, 7):
        for one, two in product(range(facts), repeat=2):
            assert counters(one, two, facts) + counters(two, one, facts) == (one != two)
    assert counters(1, 0, 3) and counters(0, 2, 3) and counters(2, 0, 5)


def test_a_matrix_game_is_solved() -> None:
    rng = Random(0)
    for _ in range(100):
        count = rng.choice([2, 3, 4])
        wins = np.array(
            [[rng.choice([0, 0.25, 0.5, 1]) for _ in range(count)] for _ in range(count)]
        )
        found = solve(wins, "together")
        honest, deceptive = np.array(found.honest), np.array(found.deceptive)
        assert honest.sum() == pytest.approx(1) and deceptive.sum() == pytest.approx(1)
        assert (honest @ wins).min() == pytest.approx(found.value)
        assert (wins @ deceptive).max() == pytest.approx(found.value)


def test_the_matrix_is_the_mean_of_what_the_arena_pays() -> None:
    for passage in supports(3):
        wins = matrix(passage, checked=0.5, rule=circle(3))
        for honest, deceptive in product(range(3), repeat=2):
            arena = raw_env(checked=0.5)
            won = []
            for looked in product((True, False), repeat=2):
                (task,) = (
                    each
                    for each in passages(orders=["together"])
                    if each.payload["supports"] == list(passage)
                )
                arena.begin(task, 0)
                arena.looked_up = dict(zip((HONEST, DECEPTIVE), looked, strict=True))
                arena.play_stage({HONEST: str(honest + 1), DECEPTIVE: str(deceptive + 1)})
                won.append(arena.metrics["honest_won"])
            assert wins[honest, deceptive] == pytest.approx(sum(won) / 4)


def test_no_rule_is_better_than_the_circle_if_all_quotes_are_checked() -> None:
    ring = {(one, two): counters(one, two, 3) for one, two in permutations(range(3), 2)}
    found = [ruled_value(rule, facts=3, checked=1.0) for rule in rules(3)]
    assert len(found) == 64
    assert ruled_value(ring, facts=3, checked=1.0) == max(found) == pytest.approx(1.0)
    assert sorted(found)[-3] < 1.0, "only the circle and its reverse have value 1"
    # If half of the quotes are checked, other rules are better than the circle.
    best = max(ruled_value(rule, facts=3, checked=0.5) for rule in rules(3))
    assert best == pytest.approx(0.8125)
    assert ruled_value(ring, facts=3, checked=0.5) == pytest.approx(0.75)


def optimal(arena: EvidenceDebate, *, slack: float = 0.0) -> list[ActionDistribution]:
    """Return optimal play of both sides, mixed with uniform play of weight `slack`."""
    found = []
    for where in arena.information_sets():
        words = where.observation.text.split()
        passage = tuple((mark == "+") == (words[0] == "honest") for mark in words[1])
        wins = matrix(passage, checked=arena.checked, rule=circle(arena.facts))
        honest = where.agent == HONEST
        if words[2] == "second":
            heard = int(words[3]) - 1
            gains = wins[:, heard] if honest else 1 - wins[heard]
            chances = np.eye(arena.facts)[int(gains.argmax())]
        else:
            order: Order = "together"
            if words[2] == "first":
                order = "honest_first" if honest else "deceptive_first"
            solution = solve(wins, order)
            chances = np.array(solution.honest if honest else solution.deceptive)
        chances = (1 - slack) * chances + slack / arena.facts
        mass = {move: float(chances[number]) for move, number in where.actions.items()}
        found.append(ActionDistribution(where=where, mass=mass))
    return found


@pytest.mark.parametrize(("facts", "checked"), [(3, 0.5), (3, 0.0), (5, 0.25)])
def test_optimal_play_is_not_exploitable_in_openspiel(facts: int, checked: float) -> None:
    pytest.importorskip("pyspiel")
    arena = raw_env(facts=facts, checked=checked, stake=2.0)
    game, sets = known_game(arena)
    assert {role_of(each.agent) for each in sets} == {"honest_debater", "deceptive_debater"}
    found = exploitability(game, optimal(arena))
    exact = [value(facts=facts, checked=checked, order=order) for order in ORDERS]
    assert found.nash_conv == pytest.approx(0.0, abs=1e-9)
    assert found.values[0] == pytest.approx(2 * (2 * sum(exact) / 3 - 1))
    assert found.values[1] == pytest.approx(-found.values[0])
    assert exploitability(game, optimal(arena, slack=0.5)).nash_conv > 0.1


def test_information_sets_are_the_views_of_the_sides() -> None:
    arena = raw_env()
    sets = {(each.agent, each.observation.text): each for each in arena.information_sets()}
    seen = set()
    for task in passages():
        for honest, deceptive in product("123", repeat=2):
            arena.begin(task, 0)
            while not arena.finished:
                moves = {HONEST: honest, DECEPTIVE: deceptive}
                for agent in arena.stage:
                    view = arena.view(agent)
                    assert sets[agent, view.text].observation == view
                    seen.add((agent, view.text))
                arena.play_stage({agent: moves[agent] for agent in arena.stage})
    assert seen == set(sets) and len(seen) == 40
    assert raw_env(judge=True).information_sets() == []
