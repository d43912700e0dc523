"""Tests of the long road: exact returns over all joint moves, delayed pay, and illegal text."""

from collections.abc import Callable, Iterable
from itertools import product

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games.long_road import MOVES, LongRoad, env, raw_env
from selfplay.types import Task

HOSTILE = [None, "", "Left", "left right", "{{ 7 }}", "\ud800", "x" * 2_000_000, "<|im_end|>"]
RIGHT = [("left", "left"), ("right", "left"), ("left", "right"), ("right", "right")]
"""Right moves of walkers 0 and 1 at the four forks."""


def begun(*, rounds: int = 64, forks: int = 4, late: bool = True) -> LongRoad:
    arena = LongRoad(rounds=rounds, forks=forks, late=late)
    arena.begin(Task(id="game"), 0)
    return arena


def play(arena: LongRoad, *moves: str | None) -> float:
    """Play a round, and return its reward, which is the same for both."""
    paid = arena.play_stage(dict(zip(arena.possible_agents, moves, strict=True)))
    assert paid["walker_0"] == paid["walker_1"]
    return paid["walker_0"]


def value(arena: LongRoad, pool: Callable[[Iterable[float]], float]) -> float:
    """Return the remaining pay if the values of the four joint moves are pooled in every round.

    Rounds with equal views are computed once for each number of rounds that are left.
    """
    known: dict[tuple[int, str], float] = {}

    def remaining(arena: LongRoad) -> float:
        if arena.finished:
            return 0.0
        key = (arena.round, arena.view("walker_0").text)
        if key not in known:
            after = []
            for moves in product(MOVES, repeat=2):
                twin = arena.fork()
                assert isinstance(twin, LongRoad)
                after.append(play(twin, *moves) + remaining(twin))
            known[key] = pool(after)
        return known[key]

    return remaining(arena)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=300)
    api_test(env(rounds=3, forks=1), num_cycles=30)
    seed_test(lambda: raw_env(rounds=6), num_cycles=20)
    assert pettingzoo.make("aec", "selfplay/long_road_v0").unwrapped.name == "long_road_v0"


@pytest.mark.parametrize("late", [True, False])
def test_random_play_is_paid_a_quarter_and_the_best_play_1(late: bool) -> None:
    assert value(begun(late=late), mean) == pytest.approx(1 / 4)
    assert value(begun(late=late), max) == pytest.approx(1)
    assert value(begun(late=late), min) == 0


def test_all_joint_moves_of_a_short_road() -> None:
    """Every sequence of joint moves of four rounds is played, 256 in all."""
    paid = []
    for ways in product(product(MOVES, repeat=2), repeat=4):
        arena = begun(rounds=4, forks=2)
        paid.append(sum(play(arena, *moves) for moves in ways))
        assert arena.paid["walker_1"] == paid[-1] == arena.metrics["passed"]
    # One joint move of four passes a fork; the other two rounds have 16 joint moves.
    assert sorted(paid) == [0.0] * (9 * 16) + [0.5] * (6 * 16) + [1.0] * 16


def test_the_right_moves_at_the_forks_pass_them_and_no_other_round_matters() -> None:
    arena = begun()
    turns = 0
    for round_ in range(64):
        fork = {8: 0, 24: 1, 40: 2, 56: 3}.get(round_)
        assert arena.at_fork == (fork is not None)
        turns += len(arena.stage)
        paid = play(arena, *(RIGHT[fork] if fork is not None else MOVES))
        assert paid == (1 if round_ == 63 else 0)
    assert turns == 128 and arena.finished
    assert arena.metrics["passed"] == 1 and arena.metrics["illegal_fraction"] == 0


def test_rewards_may_be_paid_at_once() -> None:
    arena = begun(late=False)
    paid = [play(arena, *RIGHT[arena.met % 4]) for _ in range(64)]
    assert paid == [1 / 4 if round_ in (8, 24, 40, 56) else 0 for round_ in range(64)]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_illegal_move_costs_a_fraction_and_passes_no_fork(text: str | None) -> None:
    arena = begun(rounds=2, forks=2)
    assert play(arena, text, "left") == 0
    assert arena.notes == {"walker_0": {"verdict": "illegal"}}
    assert "x" * 9 not in arena.view("walker_1").text
    assert play(arena, "right", "left") == 1 / 2 - 1 / 4
    assert arena.metrics["illegal_fraction"] == 1 / 4 and arena.metrics["passed"] == 1 / 2
    early = begun(rounds=2, forks=2, late=False)
    assert [play(early, text, text), play(early, text, text)] == [-1 / 2, -1 / 2]


def test_a_view_names_the_walker_and_its_place() -> None:
    arena = begun(rounds=4, forks=2)
    assert arena.view("walker_1").text == "walker 1 road met 0 passed 0"
    play(arena, "left", "left")
    assert arena.view("walker_0").text == "walker 0 fork met 0 passed 0"
    play(arena, "left", "left")
    assert arena.view("walker_0").text == "walker 0 road met 1 passed 1"
    assert arena.view("walker_0").fields["legal"] == ["left", "right"]


def test_there_are_50_views() -> None:
    """Play all joint moves from each different view, round by round."""
    texts, reached = set(), [begun()]
    while reached:
        after = {}
        for arena in reached:
            texts |= {arena.view(agent).text for agent in arena.stage}
            for moves in product(MOVES, repeat=2):
                twin = arena.fork()
                assert isinstance(twin, LongRoad)
                play(twin, *moves)
                if not twin.finished:
                    after[twin.view("walker_0").text] = twin
        reached = list(after.values())
    assert len(texts) == 50


def test_replay_and_fork_are_paid_the_same() -> None:
    arena = begun(rounds=8, forks=4)
    for moves in (("left", "left"), (None, "left"), ("right", "right")):
        play(arena, *moves)
    twin = arena.fork()
    for _ in range(5):
        play(arena, "right", "left")
        play(twin, "right", "left")
    assert arena.paid == twin.paid and arena.metrics == twin.metrics and arena.finished
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


@pytest.mark.parametrize("forks", [0, 5])
def test_a_road_without_a_fork_or_with_more_forks_than_rounds_is_refused(forks: int) -> None:
    with pytest.raises(ValueError, match="forks: "):
        LongRoad(rounds=4, forks=forks)
