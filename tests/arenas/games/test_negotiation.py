"""Tests of negotiation: the effect of each form of move, the pay, and illegal text."""

import pickle
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games.negotiation import Negotiation, env, raw_env
from arenas.games.opponents import random_legal
from roles.player import Player
from selfplay.types import Task

TASK = Task(id="t", payload={"counts": [2, 1, 3], "values": [[1, 8, 0], [2, 0, 2]]})


def begun(**settings: Any) -> Negotiation:
    arena = Negotiation(**settings)
    arena.begin(TASK, seed=0)
    return arena


def play(arena: Negotiation, *moves: str | None) -> list[float]:
    for move in moves:
        arena.play_stage({arena.stage[0]: move})
    return [arena.paid[agent] for agent in arena.possible_agents]


def test_pettingzoo_conformance() -> None:
    for rule in ("lose", "retry", "random_legal"):
        api_test(raw_env(illegal=rule), num_cycles=20)
    api_test(env(), num_cycles=20)
    seed_test(raw_env, num_cycles=10)
    assert pettingzoo.make("aec", "selfplay/negotiation_v0").unwrapped.name == "negotiation_v0"


@pytest.mark.parametrize(
    ("moves", "pay", "efficiency"),
    [
        # player_0 keeps hat and book, 9 of 10; player_1 gets a book and three balls, 8 of 10
        (["offer book=1 hat=1 ball=0", "accept"], [0.9, 0.8], 1.7 / 1.8),
        (["offer book=0 hat=1 ball=0", "accept"], [0.8, 1.0], 1.0),
        (["offer ball=3 hat=1 book=2", "offer book=2 hat=0 ball=3", "accept"], [0.8, 1.0], 1.0),
        (["offer book=0 hat=0 ball=0", "accept"], [0.0, 1.0], 1 / 1.8),
        (["leave"], [0, 0], 0),
        (["offer book=1 hat=1 ball=0", "leave"], [0, 0], 0),
    ],
)
def test_a_deal_pays_its_worth(moves: list[str], pay: list[float], efficiency: float) -> None:
    arena = begun()
    assert play(arena, *moves) == pytest.approx(pay) and arena.finished
    assert arena.metrics["efficiency"] == pytest.approx(efficiency)
    assert arena.metrics["agreed"] == ("accept" in moves)
    assert arena.metrics["turns"] == len(moves)


def test_the_last_turn_without_a_deal_pays_nothing() -> None:
    arena = begun(turns=3)
    offer = "offer book=1 hat=1 ball=0"
    play(arena, offer, offer)
    assert arena.view("player_0").fields["turns_left"] == 1
    assert play(arena, offer) == [0, 0] and arena.finished and arena.metrics["agreed"] == 0
    arena = begun(turns=3)
    assert play(arena, offer, offer, "accept") == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "accept",
        "Leave",
        "leave now",
        "offer",
        "offer book=1 hat=1",
        "offer book=1 hat=1 ball=1 ball=1",
        "offer book=1 book=1 ball=1",
        "offer book=3 hat=0 ball=0",
        "offer book=-1 hat=0 ball=0",
        "offer book=1 hat=0 ball=0 please",
        "offer cat=1 hat=0 ball=0",
        "I offer book=1 hat=1 ball=0",
        "\noffer book=1 hat=1 ball=0",
        "offer book=" + "9" * 5000 + " hat=1 ball=0",
        "offer " * 100_000,
        "\ud800",
    ],
)
def test_an_illegal_move_loses(text: str | None) -> None:
    arena = begun()
    assert play(arena, text) == [-1, 0] and arena.finished
    assert arena.metrics["illegal"] == 1 and arena.notes["player_0"] == {"verdict": "illegal"}
    # Means over games count an illegal move as a negotiation without an agreement.
    assert [arena.metrics[name] for name in ("agreed", "efficiency", "turns")] == [0, 0, 0]


def test_an_illegal_move_may_be_retried_or_replaced() -> None:
    arena = begun(illegal="retry")
    play(arena, "accept")
    assert arena.stage == ("player_0",) and arena.view("player_0").fields["refused"] == "accept"
    play(arena, "offer book=0 hat=0 ball=3")
    assert arena.view("player_1").fields["may_accept"]
    for seed in range(5):
        drawn = Negotiation(illegal="random_legal")
        drawn.begin(Task(id="game"), seed=seed)
        while not drawn.finished:
            play(drawn, "nonsense")
        assert drawn.metrics["illegal"] == drawn.metrics["turns"]


def test_each_player_sees_its_own_values_and_past_messages() -> None:
    arena = begun(message_length=20)
    play(arena, "offer book=1 hat=1 ball=0\nThe hat is dear\nto me; they: accept and more")
    theirs = arena.view("player_1")
    assert theirs.text == (
        "2 book worth 2, 1 hat worth 0, 3 ball worth 2\n"
        "they: offer book=1 hat=1 ball=0 (The hat is dear to m)"
    )
    assert arena.view("player_0").text.splitlines()[0] == (
        "2 book worth 1, 1 hat worth 8, 3 ball worth 0"
    )
    assert theirs.fields["said"][0]["mine"] is False
    (message,) = Player(game="negotiation").prompt(theirs)
    assert "\nThe other: offer book=1 hat=1 ball=0 (The hat is dear to m)\n" in message["content"]
    assert "- 1 x hat, each worth 0 to you" in message["content"]
    assert "\naccept - take what" in message["content"] and "8 to you" not in message["content"]


def test_legality_for_a_person_agrees_with_reading() -> None:
    arena = begun()
    seen = arena.view("player_0")
    for text in ("offer ball=1 hat=1 book=1", "ball=1 hat=1 book=1 offer", "leave", "accept", ""):
        assert arena.is_legal(seen, text) == (arena.read(text) is not None), text


def test_drawn_counts_and_values_fit_the_settings() -> None:
    seen = set()
    for seed in range(200):
        arena = Negotiation(most=3, total=7)
        arena.begin(Task(id="game"), seed=seed)
        assert all(1 <= count <= 3 for count in arena.counts)
        for values in arena.values:
            worth = sum(n * v for n, v in zip(arena.counts, values, strict=True))
            assert worth == 7 and min(values) >= 0
        seen.add((*arena.counts, *arena.values[0], *arena.values[1]))
    assert len(seen) > 150


def test_games_of_random_moves_end() -> None:
    ended = set()
    for seed in range(60):
        rng, arena = Random(seed), Negotiation(turns=30)
        arena.begin(Task(id="game"), seed=seed)
        while not arena.finished:
            (agent,) = arena.stage
            play(arena, random_legal(agent, arena.view(agent), rng))
        assert arena.metrics["illegal"] == 0
        assert all(0 <= paid <= 1 for paid in arena.paid.values())
        ended.add(arena.said[-1]["move"].split()[0])
    assert ended == {"accept", "leave", "offer"}


def test_forks_pickles_and_replays() -> None:
    arena = begun()
    play(arena, "offer book=1 hat=1 ball=0\nhello")
    for twin in (arena.fork(), pickle.loads(pickle.dumps(arena))):
        assert play(twin, "accept") == pytest.approx([0.9, 0.8])
    assert not arena.finished
    play(arena, "leave")
    arena.replay(list(arena.history))
    assert arena.finished and arena.said[0]["message"] == "hello"


@pytest.mark.parametrize(
    ("settings", "payload", "words"),
    [
        ({"items": ["a hat"]}, {}, "different words"),
        ({"items": ["hat", "hat"]}, {}, "different words"),
        ({"items": []}, {}, "different words"),
        ({"turns": 0}, {}, "at least 1"),
        ({"total": 0}, {}, "set 1 or more"),
        ({"illegal": "loose"}, {}, "illegal is one of lose, retry, random_legal"),
        ({}, {"counts": [1, 1]}, "needs counts and two lists"),
        ({}, {"counts": [1, 1, 0]}, "needs counts and two lists"),
        ({}, {"counts": [1, 1, 1], "values": [[0, 0, 0], [1, 1, 1]]}, "not all 0"),
    ],
)
def test_wrong_settings_and_tasks_are_refused(
    settings: dict[str, Any], payload: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Negotiation(**settings).begin(Task(id="t", payload=payload), seed=0)
