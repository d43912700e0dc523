"""Tests of the MCTS opponent: seeds, its strength, and refused games."""

from random import Random
from typing import Any

import pytest

from arenas.external.mcts import MCTS
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.types import Observation
from tests.helpers.random_matches import against_random, openspiel_game
from tests.helpers.wrapped_games import GAME, play


def after(name: str, *moves: str) -> Observation:
    """Return the observation of the player who moves next, after these moves."""
    arena = openspiel_game(name)
    arena.begin(GAME, seed=0)
    for move in moves:
        (agent,) = arena.acting()
        arena.play_stage({agent: move})
    return arena.view(arena.acting()[0])


def test_only_games_of_perfect_information_show_their_actions() -> None:
    seen = after("tic_tac_toe", "x(1,1)", "o(0,0)")
    assert seen.fields["history"] == [4, 0] and seen.fields["openspiel"] == "tic_tac_toe()"
    for name in ("kuhn_poker", "goofspiel(num_cards=3)"):
        arena = openspiel_game(name)
        arena.begin(GAME, seed=0)
        assert not {"history", "openspiel"} & set(arena.view("player_0").fields)


@pytest.mark.parametrize("name", ["connect_four", "tic_tac_toe"])
def test_the_same_seeds_give_the_same_games(name: str) -> None:
    def moves(simulations: int) -> list[list[str]]:
        engine = ScriptedEngine({"p": MCTS(simulations=simulations)})
        played = play(lambda: openspiel_game(name), engine, 4)
        return [[turn.text for turn in episode.turns] for episode, _ in played]

    first = moves(20)
    assert first == moves(20) and len({tuple(each) for each in first}) == 4
    assert first != moves(40)


def test_the_opponent_wins_and_defends_in_one_move() -> None:
    opponent = MCTS(simulations=200)
    wins = after("tic_tac_toe", "x(0,0)", "o(1,0)", "x(0,1)", "o(1,1)")
    must = after("tic_tac_toe", "x(0,0)", "o(1,1)", "x(0,1)")
    row = after("connect_four", "x3", "o0", "x3", "o0", "x3")
    for seed in range(5):
        assert opponent("player_0", wins, Random(seed)) == "x(0,2)"
        assert opponent("player_1", must, Random(seed)) == "o(0,2)"
        assert opponent("player_1", row, Random(seed)) == "o3"


def test_a_hundred_simulations_beat_random_play_in_both_seats() -> None:
    script = MCTS(simulations=100)
    found = against_random(lambda: openspiel_game("connect_four"), [GAME], script, samples=20)
    for agent in ("player_0", "player_1"):
        assert found[f"versus/scripted/{agent}/lost"] >= 0.9


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [Observation(text="x"), after("kuhn_poker")], ids=["none", "kuhn"])
def test_an_observation_without_the_state_is_refused(seen: Observation) -> None:
    with pytest.raises(ValueError, match="player_0's observation does not have the state"):
        MCTS()("player_0", seen, Random(0))


def test_a_game_that_pays_before_its_end_is_refused() -> None:
    fields: dict[str, Any] = {"openspiel": "cliff_walking", "history": [], "legal": ["a"]}
    with pytest.raises(ConfigError, match="cliff_walking pays during the game"):
        MCTS()("player_0", Observation(fields=fields), Random(0))


def test_wrong_settings_and_a_missing_package_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="simulations must be at least 2"):
        MCTS(simulations=1)
    monkeypatch.setitem(__import__("sys").modules, "pyspiel", None)
    with pytest.raises(ConfigError, match=r"opponent MCTS: needs .*'selfplay\[games\]'"):
        MCTS()
