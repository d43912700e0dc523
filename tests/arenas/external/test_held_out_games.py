"""Tests of many games of other libraries: each game pays as its own library pays.

Every game is played through the arena with random moves. Then the library itself is given the same
seed and the same moves, and the two are compared after every move. A fork and a pickle from the
middle of the game must end with the same pay.
"""

import pickle
import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pettingzoo
import pytest

from arenas.external.base import WrappedGame
from arenas.external.pettingzoo import PettingZoo
from selfplay.types import Task
from tests.helpers.pettingzoo_envs import plain

pytestmark = pytest.mark.slow

MOST_STAGES = 300
COPIED_AT = 4
"""Stages that are played before the game is copied."""

OPENSPIEL = [
    "2048", "amazons", "backgammon", "bargaining", "battleship", "blackjack", "blotto",
    "breakthrough", "bridge", "catch", "checkers", "clobber", "coin_game", "connect_four",
    "coop_to_1p", "cursor_go", "dark_hex", "deep_sea", "dots_and_boxes", "euchre",
    "first_sealed_auction", "gin_rummy", "go", "goofspiel", "hanabi", "havannah", "hearts", "hex",
    "kuhn_poker(players=3)", "laser_tag", "leduc_poker(players=4)", "lewis_signaling",
    "liars_dice", "mancala", "markov_soccer", "matching_pennies_3p", "matrix_pd",
    "matrix_shapleys_game", "negotiation", "nim", "nine_mens_morris", "oh_hell", "oshi_zumo",
    "othello", "oware", "pathfinding", "pentago", "phantom_ttt", "pig", "sheriff", "spades",
    "tiny_bridge_2p", "tiny_hanabi", "trade_comm", "ultimate_tic_tac_toe", "y",
]  # fmt: skip
PETTINGZOO = [
    "classic/chess-v6", "classic/connect_four-v3", "classic/go-v5", "classic/hanabi-v5",
    "classic/leduc_holdem-v4", "classic/rps-v2", "classic/texas_holdem-v4",
    "classic/texas_holdem_no_limit-v6", "classic/tictactoe-v3", "butterfly/cooperative_pong-v6",
    "butterfly/knights_archers_zombies-v11", "butterfly/pistonball-v6", "sisl/multiwalker-v9",
    "sisl/pursuit-v5",
]  # fmt: skip
PARALLEL = [
    "pettingzoo.butterfly.cooperative_pong_v6",
    "pettingzoo.butterfly.knights_archers_zombies_v11",
    "pettingzoo.sisl.pursuit_v5",
]
TEXTARENA = [
    ("2048-v0", 1), ("Alquerque-v0", 2), ("Bandit-v0", 1), ("Battleship-v0", 2),
    ("Blackjack-v0", 1), ("Breakthrough-v0", 2), ("Briscola-v0", 2), ("Chopsticks-v0", 2),
    ("ColonelBlotto-v0", 2), ("ConnectFour-v0", 2), ("Crusade-v0", 2), ("FifteenPuzzle-v0", 1),
    ("FrozenLake-v0", 1), ("GameOfPureStrategy-v0", 2), ("GermanWhist-v0", 2), ("Golf-v0", 2),
    ("HighSociety-v0", 2), ("IndianPoker-v0", 2), ("IteratedMatchingPennies-v0", 2),
    ("IteratedPrisonersDilemma-v0", 2), ("IteratedTwoThirdsAverage-v0", 2),
    ("IteratedUltimatumGame-v0", 2), ("LightsOut-v0", 1), ("LinesOfAction-v0", 2),
    ("NewRecruit-v0", 2), ("Nim-v0", 2), ("Othello-v0", 2), ("PegJump-v0", 1), ("PigDice-v0", 2),
    ("Poker-v0", 2), ("SecretMafia-v0", 6), ("Secretary-v0", 1), ("Set-v0", 1),
    ("SettlersOfCatan-v0", 4), ("SimpleBlindAuction-v0", 2), ("SimpleNegotiation-v0", 2),
    ("SimpleTak-v0", 2), ("Snake-v0", 2), ("Sokoban-v0", 1), ("SpiteAndMalice-v0", 2),
    ("Stratego-v0", 2), ("Surround-v0", 2), ("Taboo-v0", 4), ("Tak-v0", 2),
    ("ThreePlayerGOPS-v0", 3), ("ThreePlayerIPD-v0", 3), ("TruthAndDeception-v0", 2),
    ("UltimateTicTacToe-v0", 2), ("WildTicTacToe-v0", 2),
]  # fmt: skip

Mover = Callable[[WrappedGame, random.Random], dict[str, str]]


def legal(arena: WrappedGame, rng: random.Random) -> dict[str, str]:
    """Return a legal move of every agent that moves."""
    return {agent: rng.choice(arena.view(agent).fields["legal"]) for agent in arena.stage}


def free(arena: WrappedGame, rng: random.Random) -> dict[str, str]:
    """Return a text in square brackets that the game has shown, or a number in square brackets."""
    (agent,) = arena.stage
    shown = re.findall(r"\[[^\]\n]{1,20}\]", arena.view(agent).text[-800:])
    return {agent: rng.choice([*shown, f"[{rng.randrange(9)}]"])}


def played(arena: WrappedGame, mover: Mover) -> list[dict[str, float]]:
    """Play a game and copies of it; return the pay of all agents after each stage."""
    rng, paid = random.Random(1), list[dict[str, float]]()
    arena.begin(Task(id="game"), seed=5)
    copies: list[WrappedGame] = []
    made: list[dict[str, str]] = []
    while not arena.finished and len(paid) < MOST_STAGES:
        if len(paid) == COPIED_AT:
            copies = [pickle.loads(pickle.dumps(arena))]
            fork = arena.fork()
            assert isinstance(fork, WrappedGame)
            copies.append(fork)
        made.append(mover(arena, rng))
        arena.play_stage(made[-1])
        paid.append(dict(arena.paid))
    for copied in copies:
        for moves in made[COPIED_AT:]:
            copied.play_stage(moves)
        assert copied.paid == arena.paid and copied.finished == arena.finished
        assert copied.place() == arena.place()
    return paid


def seed_globals(seed: int) -> None:
    """Seed the generators of the whole process, because many games draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@pytest.mark.parametrize("game", OPENSPIEL)
def test_a_game_of_openspiel_pays_as_openspiel_pays(game: str) -> None:
    pyspiel = pytest.importorskip("pyspiel")
    arena = PettingZoo(
        env="arenas.external.openspiel",
        arguments={"game": game},
        render="arenas.external.openspiel.show",
        action_names="arenas.external.openspiel.name_move",
    )
    paid = played(arena, legal)
    own = arena.wrapped.unwrapped._env  # shimmy sets the seed of a game that takes one
    state = pyspiel.load_game(
        str(own) if "seed" in own.get_parameters() else game
    ).new_initial_state()
    recorded = [each.action for each in arena.wrapped.unwrapped.game_state.full_history()]
    simultaneous = state.get_game().get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
    returns: list[list[float]] = []
    while recorded:
        chance = state.is_chance_node()
        if state.is_simultaneous_node():
            count = state.num_players()
            state.apply_actions(recorded[:count])
            del recorded[:count]
        else:
            state.apply_action(recorded.pop(0))
        if not chance:
            returns.append([])
        if returns:  # rewards of chance after a move belong to that move
            returns[-1] = list(state.returns())
    assert state.is_terminal() == arena.finished
    ours = [list(each.values()) for each in paid]
    if simultaneous:  # the arena asks one player after the other, and pays after the last one
        ours, returns = changes(ours), changes(returns)
    assert len(ours) == len(returns)
    for mine, theirs in zip(ours, returns, strict=True):
        assert mine == pytest.approx(theirs)


def changes(pay: list[list[float]]) -> list[list[float]]:
    """Return the pay from the start, without rows that equal the row before."""
    whole = [[0.0] * len(pay[0]), *([round(each, 6) for each in row] for row in pay)]
    return [now for before, now in pairwise(whole) if now != before]


def made(name: str) -> PettingZoo:
    """Return the arena of an env; skip the test if the env needs a package that is missing."""
    try:
        arena = PettingZoo(env=name, render=plain)
    except Exception as error:
        if "not installed" in str(error):
            pytest.skip(str(error))
        raise
    if arena.wrapped.unwrapped.__class__.__module__.startswith("pettingzoo.classic"):
        return PettingZoo(env=name)
    return arena


@pytest.mark.parametrize("name", PETTINGZOO)
def test_an_env_of_pettingzoo_pays_as_pettingzoo_pays(name: str) -> None:
    arena = made(name)
    paid = played(arena, legal)
    seed_globals(0)
    env = pettingzoo.make("aec", name)
    seed_globals(arena.env_seed)
    env.reset(seed=arena.env_seed)
    returns = dict.fromkeys(arena.possible_agents, 0.0)
    theirs: list[dict[str, float]] = []
    for move in arena.applied:
        env.step(move)
        if move is not None:
            for agent, reward in env.rewards.items():
                returns[arena._ours[agent]] += reward
            theirs.append(dict(returns))
    assert compared(paid, theirs)


def compared(paid: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> bool:
    """Return True if the pay after each stage equals the library's pay after one of its moves, in
    the same order, and the final pay equals the library's final pay."""
    at = 0
    for ours in paid:
        while at < len(theirs) and theirs[at] != pytest.approx(ours):
            at += 1
        if at == len(theirs):
            return False
    return theirs[-1] == pytest.approx(paid[-1])


@pytest.mark.parametrize("name", PARALLEL)
def test_a_parallel_env_pays_as_pettingzoo_pays(name: str) -> None:
    arena = made(f"{name}.parallel_env")
    paid = played(arena, legal)
    seed_globals(0)
    env = __import__(name, fromlist=["parallel_env"]).parallel_env()
    seed_globals(arena.env_seed)
    env.reset(seed=arena.env_seed)
    returns = dict.fromkeys(arena.possible_agents, 0.0)
    for moves, ours in zip(arena.history, paid, strict=True):
        assert all(move is not None for move in moves.values())
        actions = {arena._theirs[agent]: int(move or 0) for agent, move in moves.items()}
        _, rewards, *_ = env.step(actions)
        for agent, reward in rewards.items():
            returns[arena._ours[agent]] += reward
        assert returns == pytest.approx(ours)


@pytest.mark.parametrize(("name", "players"), TEXTARENA)
def test_a_game_of_textarena_pays_as_textarena_pays(name: str, players: int) -> None:
    textarena = pytest.importorskip("textarena")
    from arenas.external.textarena import TextArena

    arena = TextArena(env=name, players=players)
    paid = played(arena, free)
    seed_globals(0)
    game = textarena.make(name)
    seed_globals(arena.env_seed)
    game.reset(num_players=players, seed=arena.env_seed)
    done = False
    for moves in arena.history:
        ((agent, text),) = moves.items()
        player, _ = game.get_observation()
        assert not done and agent == f"player_{player}"
        done, _ = game.step(action=text)
    assert done == arena.finished
    if done:
        rewards, _ = game.close()
        assert paid[-1] == {f"player_{player}": reward for player, reward in rewards.items()}
