"""Tests of chess, poker and Hanabi as text: observations, and a name for every legal move."""

import random

import chess
import pytest

from arenas.external.game_text import FORMATS
from arenas.external.pettingzoo import PettingZoo
from selfplay.types import Task

GAMES = [
    "classic/chess-v6",
    "classic/hanabi-v5",
    "classic/leduc_holdem-v4",
    "classic/texas_holdem-v4",
    "classic/texas_holdem_no_limit-v6",
]


def begun(name: str, seed: int = 3) -> PettingZoo:
    arena = PettingZoo(env=name)
    arena.begin(Task(id="game", payload={"seed": seed}), seed=0)
    return arena


def test_the_table_has_a_format_for_each_of_these_games() -> None:
    found = {type(begun(name).wrapped.unwrapped).__module__ for name in GAMES}
    assert found == set(FORMATS)


@pytest.mark.parametrize("name", GAMES)
def test_every_move_has_a_name_and_no_view_is_a_list_of_numbers(name: str) -> None:
    rng = random.Random(0)
    for seed in range(2 if "chess" in name else 10):
        arena = begun(name, seed)
        for _ in range(60):
            if arena.finished:
                break
            seen = arena.view(arena.stage[0])
            assert "ones at" not in seen.text and "plane" not in seen.text
            moves = arena._allowed(arena.stage[0], arena.wrapped.observe(arena.stage[0]))
            assert seen.fields["legal"] and not any(m.isdigit() for m in seen.fields["legal"])
            assert len(moves.actions) == len(set(moves.actions.values()))
            arena.play_stage({arena.stage[0]: rng.choice(seen.fields["legal"])})
        assert not arena.metrics["illegal"]


def test_chess_is_a_board_and_moves_in_algebraic_notation() -> None:
    arena, board = begun("classic/chess-v6"), chess.Board()
    for move in ("e4", "d5", "exd5", "Nf6", "Bb5+"):
        seen = arena.view(arena.stage[0])
        assert set(seen.fields["legal"]) == {board.san(each) for each in board.legal_moves}
        arena.play_stage({arena.stage[0]: move})
        board.push_san(move)
    seen = arena.view("player_1")
    assert seen.fields["board"] == (
        "You play Black. Last move: Bb5+.\n"
        "FEN: rnbqkb1r/ppp1pppp/5n2/1B1P4/8/8/PPPP1PPP/RNBQK1NR b KQkq - 2 3\n"
        "8 r n b q k b . r\n7 p p p . p p p p\n6 . . . . . n . .\n5 . B . P . . . .\n"
        "4 . . . . . . . .\n3 . . . . . . . .\n2 P P P P . P P P\n1 R N B Q K . N R\n"
        "  a b c d e f g h"
    )
    assert set(seen.fields["legal"]) == {board.san(each) for each in board.legal_moves}
    assert "You play White" in arena.view("player_0").text


def test_promotions_and_castling_have_names() -> None:
    arena = begun("classic/chess-v6")
    game = "h4 g5 hxg5 h6 gxh6 Nf6 Nf3 Bg7 hxg7 Nh5 g3 Nf6 Bg2 Nh5 O-O Nf6 gxh8=N"
    for move in game.split():
        assert move in arena.view(arena.stage[0]).fields["legal"]
        arena.play_stage({arena.stage[0]: move})
    assert "Last move: gxh8=N." in arena.view(arena.stage[0]).text


def test_poker_is_cards_and_chips() -> None:
    arena = begun("classic/texas_holdem_no_limit-v6")
    first = arena.view("player_0")
    assert first.fields["board"] == (
        "Your cards: jack of hearts, ten of diamonds\nCards on the table: none yet\n"
        "Chips in the pot: 3 (you 1, player_1 2)\nChips that you have left: 99"
    )
    assert first.fields["legal"] == ["fold", "call", "raise pot", "all in"]
    arena.play_stage({"player_0": "call"})
    legal = arena.view("player_1").fields["legal"]
    assert legal == ["fold", "check", "raise half pot", "raise pot", "all in"]
    arena.play_stage({"player_1": "check"})
    later = arena.view("player_0").fields["board"]
    assert "Cards on the table: queen of diamonds, 9 of diamonds, 8 of diamonds" in later
    limit = begun("classic/texas_holdem-v4")
    assert limit.view("player_0").fields["legal"] == ["call", "raise", "fold"]
    leduc = begun("classic/leduc_holdem-v4").view("player_0")
    assert leduc.text.startswith("Your cards: queen of hearts\nCards on the table: none yet")


@pytest.mark.parametrize(
    ("name", "greedy", "least"),
    [
        ("classic/leduc_holdem-v4", ["raise", "call"], -7.0),
        ("classic/texas_holdem-v4", ["raise", "call"], -25.0),
        ("classic/texas_holdem_no_limit-v6", ["all in", "call"], -100.0),
    ],
)
def test_an_illegal_move_costs_as_much_as_the_worst_loss(
    name: str, greedy: list[str], least: float
) -> None:
    returns = set[float]()
    for seed in range(5):
        arena = begun(name, seed)
        while not arena.finished:
            legal = arena.view(arena.stage[0]).fields["legal"]
            arena.play_stage({arena.stage[0]: next(m for m in [*greedy, "check"] if m in legal)})
        returns |= set(arena.paid.values())
    assert min(returns) == least
    arena = begun(name)
    arena.play_stage({"player_0": "???"})
    assert arena.finished and arena.paid == {"player_0": least, "player_1": -least}


def test_no_player_sees_the_cards_of_another() -> None:
    arena = begun("classic/texas_holdem-v4")
    assert "clubs" in arena.view("player_0").fields["board"]
    assert "clubs" not in arena.view("player_1").fields["board"]


def test_hanabi_has_the_text_of_openspiel() -> None:
    seen = begun("classic/hanabi-v5").view("player_0")
    assert seen.text.startswith("Life tokens: 3\nInfo tokens: 8\nFireworks: R0 Y0 G0 W0 B0")
    assert {"Play 0", "Reveal player +1 color R"} <= set(seen.fields["legal"])


def test_functions_of_a_config_take_precedence() -> None:
    arena = PettingZoo(
        env="classic/chess-v6",
        render=lambda env, agent, observation: "mine",
        action_names=lambda env, agent, action: f"move {action}",
    )
    arena.begin(Task(id="game"), seed=0)
    seen = arena.view("player_0")
    assert seen.fields["board"] == "mine" and seen.fields["legal"][0].startswith("move ")
