"""Tests of OpenSpiel's games through shimmy: whole games, and OpenSpiel's own returns."""

from collections import Counter, deque
from random import Random

import pyspiel
import pytest
from pettingzoo.test import api_test

from arenas.external import openspiel
from arenas.external.pettingzoo import PettingZoo
from arenas.games.opponents import random_legal
from selfplay.engines.scripted import ScriptedEngine
from selfplay.types import Status
from tests.helpers.wrapped_games import GAME, own_returns, play

GAMES = ["kuhn_poker", "leduc_poker", "tic_tac_toe", "leduc_poker(players=3)"]


@pytest.mark.parametrize("game", [*GAMES, "goofspiel(num_cards=4)"])
def test_openspiels_games_pay_openspiels_returns(game: str) -> None:
    def make() -> PettingZoo:
        return PettingZoo(
            env="arenas.external.openspiel",
            arguments={"game": game},
            render="arenas.external.openspiel.show",
            action_names="arenas.external.openspiel.name_move",
        )

    for episode, arena in play(make, ScriptedEngine({"p": random_legal}), 10):
        assert episode.status is Status.FINISHED, episode.error
        played = arena.wrapped.unwrapped.game_state
        again = pyspiel.load_game(game).new_initial_state()
        actions = deque(each.action for each in played.full_history())
        while actions:
            if again.is_simultaneous_node():
                again.apply_actions([actions.popleft() for _ in arena.possible_agents])
            else:
                again.apply_action(actions.popleft())
        assert again.is_terminal()
        assert list(arena.paid.values()) == pytest.approx(again.returns())
        made = openspiel.env(game=game)
        assert arena.paid == pytest.approx(own_returns(arena, made))
    api_test(openspiel.env(game=game), num_cycles=20)


@pytest.mark.parametrize(
    ("game", "moves", "loser", "paid"),
    [
        ("leduc_poker", ["Raise", "Raise"], 0, [-13.0, 13.0]),
        ("kuhn_poker", ["Bet"], 1, [2.0, -2.0]),
        ("tic_tac_toe", [], 0, [-1.0, 1.0]),
        ("leduc_poker(players=3)", ["Raise"], 1, [0.0, -13.0, 0.0]),
        ("matrix_sh", [], 0, [-1.0, 0.0]),
    ],
)
def test_an_illegal_move_is_never_cheaper_than_the_worst_loss(
    game: str, moves: list[str], loser: int, paid: list[float]
) -> None:
    arena = PettingZoo(
        env="arenas.external.openspiel",
        arguments={"game": game},
        render="arenas.external.openspiel.show",
        action_names="arenas.external.openspiel.name_move",
    )
    arena.begin(GAME, seed=0)
    for move in moves:
        arena.play_stage({arena.stage[0]: move})
    assert f"player_{loser}" in arena.stage
    arena.play_stage({f"player_{loser}": "I stop."})
    assert arena.finished and list(arena.paid.values()) == paid


def test_an_illegal_move_takes_back_what_the_game_has_paid() -> None:
    arena = PettingZoo(
        env="arenas.external.openspiel",
        arguments={"game": "2048"},
        render="arenas.external.openspiel.show",
        action_names="arenas.external.openspiel.name_move",
    )
    arena.begin(GAME, seed=0)
    rng = Random(0)
    while arena.paid["player_0"] < 8:
        arena.play_stage({"player_0": rng.choice(arena.view("player_0").fields["legal"])})
    arena.play_stage({"player_0": "I stop."})
    assert arena.finished and arena.paid == {"player_0": 0.0}


def test_openspiels_text_is_shown() -> None:
    arena = PettingZoo(
        env="arenas.external.openspiel",
        arguments={"game": "tic_tac_toe"},
        render="arenas.external.openspiel.show",
        action_names="arenas.external.openspiel.name_move",
    )
    arena.begin(GAME, seed=0)
    arena.play_stage({"player_0": "x(1,1)"})
    seen = arena.view("player_1")
    assert seen.fields["board"] == "...\n.x.\n..."
    assert "o(0,0)" in seen.fields["legal"] and "o(1,1)" not in seen.fields["legal"]


def test_information_sets_belong_to_the_games_players_if_roles_are_mixed() -> None:
    def sets(seats: list[str]) -> Counter[str]:
        arena = PettingZoo(
            env="arenas.external.openspiel",
            arguments={"game": "kuhn_poker(players=3)"},
            seats=seats,
            render="arenas.external.openspiel.show",
            action_names="arenas.external.openspiel.name_move",
        )
        return Counter(each.agent for each in arena.information_sets())

    plain = sets([])
    mixed = sets(["x", "y", "x"])
    pairs = (("x_0", "player_0"), ("y_0", "player_1"), ("x_1", "player_2"))
    assert mixed == {name: plain[place] for name, place in pairs}
