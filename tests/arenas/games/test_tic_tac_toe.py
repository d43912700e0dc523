"""Tests of tic-tac-toe: games by hand, against OpenSpiel, and with scripted opponents."""

import pickle
from collections.abc import Collection
from random import Random
from typing import Any

import pettingzoo
import pyspiel
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games.opponents import random_legal
from arenas.games.tic_tac_toe import TicTacToe, env, minimax, raw_env, value
from roles.player import Player
from selfplay.config.compose import load
from selfplay.engines.scripted import ScriptedEngine
from selfplay.experiment.experiment import check
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Observation, Status, Task

GAMES = [
    ("1 4 2 5 3", [1, -1]),
    ("1 5 9 3 2 7", [-1, 1]),
    ("1 2 3 4 6 5 7 9 8", [0, 0]),
    ("1 2 3 4 5 6 8 9 7", [1, -1]),
]


def begun(board: str = "", **settings: Any) -> TicTacToe:
    arena = TicTacToe(**settings)
    payload = {"board": board} if board else {}
    arena.begin(Task(id="t", payload=payload), seed=0)
    return arena


def play(arena: TicTacToe, *moves: str | None) -> list[float]:
    for move in moves:
        arena.play_stage({arena.stage[0]: move})
    return [arena.paid[agent] for agent in arena.possible_agents]


def test_pettingzoo_conformance() -> None:
    for rule in ("lose", "retry", "random_legal"):
        api_test(raw_env(illegal=rule), num_cycles=30)
    api_test(env(), num_cycles=30)
    seed_test(raw_env, num_cycles=20)
    assert pettingzoo.make("aec", "selfplay/tic_tac_toe_v0").unwrapped.name == "tic_tac_toe_v0"


@pytest.mark.parametrize(("moves", "pay"), GAMES)
def test_a_game_is_paid_by_the_rules(moves: str, pay: list[float]) -> None:
    arena = begun()
    assert play(arena, *moves.split()) == pay and arena.finished
    assert arena.metrics["player_0_payoff"] == pay[0]
    assert arena.metrics["drawn"] == (pay[0] == 0)
    assert arena.metrics["moves"] == len(moves.split())


def test_openspiel_pays_the_same_for_the_same_moves() -> None:
    outcomes = set()
    for seed in range(200):
        rng, arena = Random(seed), begun()
        state = pyspiel.load_game("tic_tac_toe").new_initial_state()
        while not arena.finished:
            legal = arena.view(arena.stage[0]).fields["legal"]
            assert [int(move) - 1 for move in legal] == state.legal_actions()
            move = rng.choice(legal)
            play(arena, move)
            state.apply_action(int(move) - 1)
        assert state.is_terminal() and list(arena.paid.values()) == state.returns()
        outcomes.add(tuple(state.returns()))
    assert outcomes == {(1, -1), (-1, 1), (0, 0)}


@pytest.mark.parametrize("text", [None, "", "0", "10", "1 ", "one", "5", "\ud800", "٣", "1" * 9999])
def test_an_illegal_square_loses(text: str | None) -> None:
    arena = begun()
    assert play(arena, "5", text) == [1, -1] and arena.finished
    assert arena.metrics["illegal"] == arena.metrics["forfeit"] == 1
    assert arena.metrics["drawn"] == 0 and arena.metrics["moves"] == 1
    assert arena.notes == {"player_1": {"verdict": "illegal"}}


def test_an_illegal_move_may_be_retried_or_replaced() -> None:
    arena = begun(illegal="retry", retries=1)
    play(arena, "5", "5")
    assert arena.stage == ("player_1",) and arena.view("player_1").fields["refused"] == "5"
    assert "You cannot play" in prompt(arena) and arena.view("player_0").fields["refused"] == ""
    play(arena, "1", "1", "2")
    assert arena.board == "OX..X...."
    assert play(arena, "x", "x") == [1, -1]
    drawn = begun(illegal="random_legal")
    while not drawn.finished:
        play(drawn, "nonsense")
    assert drawn.metrics["illegal"] == drawn.metrics["moves"] and not drawn.metrics["forfeit"]
    assert drawn.metrics["illegal_fraction"] == 1.0, "the fraction is at most 1"


def test_a_perfect_player_is_never_beaten() -> None:
    assert value("." * 9) == 0
    assert value("XX.OO....") == 1 and value("X...O...X") == 0
    assert minimax("p", Observation(fields={"board": "XX.OO...."}), Random(0)) == "3"
    # O must answer a corner with the centre
    assert {
        minimax("p", Observation(fields={"board": "X" + "." * 8}), Random(s)) for s in range(9)
    } == {"5"}


def games(first: Any, second: Any, count: int) -> list[float]:
    """Return the payoff of the first player in each game."""
    seat: dict[str, Any] = {"role": Role(), "renderer": ByteRenderer()}
    seats = {name: AgentSpec(policy=name, **seat) for name in ("x", "o")}
    rollout = Rollout(
        arena=lambda: TicTacToe(players=("x", "o")),
        agent_specs=seats,
        engines={"x": ScriptedEngine({"x": first}), "o": ScriptedEngine({"o": second})},
    )
    episodes = rollout.run([EpisodeSpec(task=Task(id="game"), seed=seed) for seed in range(count)])
    assert all(episode.status is Status.FINISHED for episode in episodes)
    assert all(episode.metrics["illegal"] == 0 for episode in episodes)
    return [episode.metrics["x_0_payoff"] for episode in episodes]


def test_scripted_players_play_each_other() -> None:
    assert set(games(minimax, minimax, 30)) == {0}
    assert min(games(minimax, random_legal, 100)) >= 0
    assert max(games(random_legal, minimax, 100)) <= 0
    # uniform play: X wins .585, loses .288; the spread of a mean of 400 is .045
    assert sum(games(random_legal, random_legal, 400)) / 400 == pytest.approx(0.297, abs=0.18)


def test_a_random_opponent_needs_moves_to_choose_from() -> None:
    with pytest.raises(ValueError, match="the field `legal` of its observation lists no moves"):
        random_legal("player_0", Observation(text="say something"), Random(0))


@pytest.mark.parametrize("moves", [{"1", "2"}, frozenset({"1"})])
def test_a_random_opponent_refuses_a_set_of_moves(moves: Collection[str]) -> None:
    with pytest.raises(ValueError, match=r"`legal` of an observation is a (frozen)?set, whose ord"):
        random_legal("player_0", Observation(fields={"legal": moves}), Random(0))


def test_forks_pickles_and_replays() -> None:
    arena = begun()
    play(arena, "5")
    for twin in (arena.fork(), pickle.loads(pickle.dumps(arena))):
        play(twin, "1", "2", "3", "8")
        assert twin.finished and twin.paid == {"player_0": 1, "player_1": -1}
    assert arena.board == "....X...."
    play(arena, "1", "2", "8", "3", "7", "4", "6", "9")
    paid, board = dict(arena.paid), arena.board
    arena.replay(list(arena.history))
    assert (arena.paid, arena.board) == (paid, board) and arena.finished


def prompt(arena: TicTacToe) -> str:
    return str(Player(game="tic_tac_toe").prompt(arena.view(arena.stage[0]))[0]["content"])


def test_the_prompt() -> None:
    arena = begun("X...O....")
    assert "You are X;" in prompt(arena)
    assert "\nX 2 3\n4 O 6\n7 8 9\n" in prompt(arena)
    assert prompt(arena).endswith("and nothing else: 2, 3, 4, 6, 7, 8, 9")


@pytest.mark.parametrize("board", ["X" * 9, "XO", "XX.......", "XXXOO....", "........Z"])
def test_a_task_with_a_wrong_board_is_refused(board: str) -> None:
    with pytest.raises(ValueError, match="no board with a player to move"):
        begun(board)


@pytest.mark.parametrize("name", ["tic_tac_toe", "leduc", "negotiation"])
def test_the_configs_compose(name: str) -> None:
    curriculum = "leduc" if name == "leduc" else "games"
    groups = [f"arena={name}", f"roles={name}", f"curriculum={curriculum}"]
    check(load([*groups, "services=none", "evaluations=none", "warmstart=none", "credit=rae"]))
