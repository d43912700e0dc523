"""Tests of PettingZoo envs as arenas: whole games, the env's own returns, copies, replays."""

import pickle
import random
import warnings
from typing import Any

import numpy as np
import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test
from transformers import PreTrainedModel

from arenas.external.pettingzoo import PettingZoo, env
from arenas.games.opponents import random_legal
from roles.player import Player
from selfplay.config.compose import load
from selfplay.engines.scripted import ScriptedEngine
from selfplay.experiment.experiment import check
from selfplay.models.renderer import ChatRenderer
from selfplay.types import Status, Task
from tests.helpers.engine_requests import serving
from tests.helpers.pettingzoo_envs import Bids, Countdown, Drawn, Keeps, Locked, plain
from tests.helpers.wrapped_games import GAME, own_returns, play, recorded_returns

TWO_GAMES = ["classic/tictactoe-v3", "classic/connect_four-v3"]


@pytest.mark.parametrize("rule", ["lose", "retry", "random_legal"])
@pytest.mark.parametrize("name", [*TWO_GAMES, "classic/rps-v2", "selfplay/kuhn_v0"])
def test_pettingzoo_conformance(name: str, rule: Any) -> None:
    def make() -> Any:
        return env(env=name, illegal=rule)

    api_test(make(), num_cycles=20)
    seed_test(make, num_cycles=5)


def test_a_parallel_env_conforms_too() -> None:
    api_test(PettingZoo(env=Bids, illegal="random_legal"), num_cycles=20)


@pytest.mark.parametrize("name", [*TWO_GAMES, "classic/rps-v2", "classic/leduc_holdem-v4"])
def test_random_games_are_paid_as_the_env_pays(name: str) -> None:
    engine = ScriptedEngine({"p": random_legal})
    for episode, arena in play(lambda: PettingZoo(env=name), engine, 10):
        assert episode.status is Status.FINISHED, episode.error
        assert episode.metrics["illegal"] == 0 and episode.metrics["moves"] == len(episode.turns)
        returns = own_returns(arena, pettingzoo.make("aec", name))
        assert arena.paid == pytest.approx(returns)
        assert recorded_returns(episode) == {agent: returns[agent] for agent in episode.agents()}
        for agent, value in returns.items():
            assert episode.metrics[f"{agent}_return"] == pytest.approx(value)


@pytest.mark.parametrize("name", TWO_GAMES)
def test_a_tiny_policy_plays_to_the_end(
    name: str, model: PreTrainedModel, renderer: ChatRenderer
) -> None:
    engine = serving({"p": model}, {"p": renderer.end_ids})
    seat = {"renderer": renderer, "max_tokens": 2}
    games = play(lambda: PettingZoo(env=name, illegal="random_legal"), engine, 10, **seat)
    for episode, arena in games:
        assert episode.status is Status.FINISHED, episode.error
        assert episode.metrics["illegal"] > 0, "noise that is always legal would test nothing"
        fraction = episode.metrics["illegal"] / len(episode.turns)
        assert episode.metrics["illegal_fraction"] == fraction <= 1.0
        assert recorded_returns(episode) == pytest.approx(
            own_returns(arena, pettingzoo.make("aec", name))
        )
    assert {game.metrics["player_0_return"] for game, _ in games} >= {1.0, -1.0}


def test_all_agents_of_a_parallel_env_move_at_once() -> None:
    arena = PettingZoo(env=Bids, seats=["buyer", "buyer", "guest"])
    arena.begin(GAME, seed=0)
    assert arena.stage == ("buyer_0", "buyer_1", "guest_0")
    assert arena.view("guest_0").text == "0\nlegal moves: 1, 2, 3"
    arena.play_stage({"buyer_0": "1", "buyer_1": "2", "guest_0": "3"})
    arena.play_stage({"buyer_0": "2", "buyer_1": "2", "guest_0": "1"})
    assert arena.stage == ("buyer_0", "buyer_1")
    assert arena.view("guest_0").text == "out of the game"
    arena.play_stage({"buyer_0": "3", "buyer_1": "1"})
    assert arena.finished
    # the highest bid is worth 1, every bid costs a tenth
    assert arena.paid == pytest.approx({"buyer_0": 1.4, "buyer_1": 0.5, "guest_0": 0.6})


def test_only_agents_with_illegal_moves_are_asked_again() -> None:
    arena = PettingZoo(env=Bids, illegal="retry", retries=1, others_reward=0.5)
    arena.begin(GAME, seed=0)
    arena.play_stage({"player_0": "1", "player_1": "seven", "player_2": None})
    assert arena.stage == ("player_1", "player_2")
    assert "not legal: seven" in arena.view("player_1").text
    twin = arena.fork()
    arena.play_stage({"player_1": "2", "player_2": "3"})
    assert arena.stage == ("player_0", "player_1", "player_2") and arena.paid["player_2"] == 0.7
    twin.play_stage({"player_1": "0", "player_2": "3"})
    assert twin.finished and twin.paid == {"player_0": 0.5, "player_1": -1.0, "player_2": 0.5}
    assert twin.metrics["illegal"] == 3 and twin.metrics["forfeit"] == 1


class Costly(Bids):
    """`Bids` with a fee, so that a legal game costs more than an illegal move."""

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: reward - 2 for agent, reward in rewards.items()}, *rest


def test_a_warning_says_that_a_legal_game_costs_more_than_an_illegal_move() -> None:
    def play_out(**settings: Any) -> PettingZoo:
        arena = PettingZoo(env=Costly, **settings)
        arena.begin(GAME, seed=0)
        while not arena.finished:
            arena.play_stage(dict.fromkeys(arena.stage, "1"))
        return arena

    with pytest.warns(UserWarning, match=r"pays less than -1.*arena\.illegal_reward"):
        assert min(play_out().paid.values()) < -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play_out(illegal_reward=-1.0)
        play_out(illegal="random_legal")


@pytest.mark.parametrize("text", ["9", "-1", "0.0", "1e0", "zero", "", "\ud800", "0\x00", "0 1"])
def test_an_agent_without_a_legal_move_loses(text: str) -> None:
    arena = PettingZoo(env=TWO_GAMES[0], illegal_reward=-2.0, others_reward=0.5)
    arena.begin(GAME, seed=1)
    arena.play_stage({"player_0": "4"})
    arena.play_stage({"player_1": text})
    assert arena.finished and arena.paid == {"player_0": 0.5, "player_1": -2.0}
    assert arena.notes["player_1"] == {"verdict": "illegal"}
    assert arena.metrics["illegal"] == arena.metrics["forfeit"] == 1


def test_a_square_that_is_taken_is_not_legal() -> None:
    arena = PettingZoo(env=TWO_GAMES[0], illegal="retry", retries=2)
    arena.begin(GAME, seed=1)
    arena.play_stage({"player_0": "4"})
    for _ in range(2):
        arena.play_stage({"player_1": "4"})
        assert arena.stage == ("player_1",) and not arena.finished
        assert arena.view("player_1").fields["refused"] == "4"
    arena.play_stage({"player_1": "0"})
    assert arena.view("player_1").fields["refused"] == "" and arena.stage == ("player_0",)
    for _ in range(3):
        assert not arena.finished
        arena.play_stage({"player_0": "4"})
    assert arena.finished and arena.paid["player_0"] == -1


def test_a_drawn_move_depends_only_on_the_seed() -> None:
    boards = set()
    for seed in [0, 0, *range(1, 30)]:
        arena = PettingZoo(env=TWO_GAMES[0], illegal="random_legal")
        arena.begin(GAME, seed=seed)
        arena.play_stage({"player_0": "nonsense"})
        boards.add(arena.view("player_1").text)
        assert len(boards) == 1 or seed
    assert 5 < len(boards) <= 9


@pytest.mark.parametrize("made", [TWO_GAMES[0], lambda: Countdown(dice=True), Locked, Bids])
def test_forks_pickles_and_replays_are_independent(made: Any) -> None:
    arena = PettingZoo(env=made, illegal="random_legal")
    arena.begin(GAME, seed=5)
    rng = random.Random(0)

    def turn(played: PettingZoo) -> None:
        legal = {agent: played.view(agent).fields["legal"] for agent in played.stage}
        played.play_stage({agent: rng.choice(moves) for agent, moves in legal.items()})

    turn(arena)
    copies = [arena.fork(), arena.fork()]
    if not callable(made) or isinstance(made, type):
        copies.append(pickle.loads(pickle.dumps(arena)))
    before = arena.view(arena.stage[0])
    for copied in copies:
        assert copied.wrapped is not arena.wrapped
        assert copied.view(copied.stage[0]) == before
        rng.seed(1)
        while not copied.finished:
            turn(copied)
    assert arena.view(arena.stage[0]) == before and not arena.finished
    rng.seed(1)
    while not arena.finished:
        turn(arena)
    paid, history = dict(arena.paid), list(arena.history)
    assert any(paid.values())
    assert all(copied.paid == paid for copied in copies)
    arena.replay(history)
    assert arena.paid == paid


def test_state_that_an_env_keeps_over_a_reset_does_not_leak() -> None:
    arena, paid = PettingZoo(env=Keeps), []
    for seed in range(3):
        arena.begin(GAME, seed=seed)
        fork, copied = arena.fork(), pickle.loads(pickle.dumps(arena))
        for each in (arena, fork, copied):
            while not each.finished:
                each.play_stage({each.stage[0]: "1"})
        paid.append(dict(arena.paid))
        assert paid[0] == arena.paid == fork.paid == copied.paid


def test_the_env_of_a_new_arena_is_made_once() -> None:
    made: list[int] = []

    def make() -> Countdown:
        made.append(1)
        return Countdown()

    arena = PettingZoo(env=make)
    arena.begin(GAME, seed=0)
    assert len(made) == 1
    arena.begin(GAME, seed=0)
    assert len(made) == 2


def test_an_env_that_draws_in_its_constructor_is_copied_exactly() -> None:
    arena = PettingZoo(env=Drawn)
    arena.begin(GAME, seed=0)
    arena.play_stage({"player_0": "1"})
    assert arena.view("player_1") == pickle.loads(pickle.dumps(arena)).view("player_1")


def test_a_fork_of_knights_archers_zombies_equals_its_parent() -> None:
    pytest.importorskip("pygame")
    arena = PettingZoo(env="butterfly/knights_archers_zombies-v11", render=plain)
    rng = random.Random(0)
    for seed in (0, 1):
        arena.begin(GAME, seed=seed)
        for _ in range(30):
            arena.play_stage({agent: str(rng.randrange(6)) for agent in arena.stage})
        fork = arena.fork()
        seen = [[each.view(agent).text for agent in each.stage] for each in (arena, fork)]
        assert seen[0] == seen[1] and arena.paid == fork.paid


def test_games_do_not_share_the_global_generators() -> None:
    def run(arena: PettingZoo) -> None:
        arena.play_stage({arena.stage[0]: "1"})

    alone = PettingZoo(env=lambda: Countdown(dice=True))
    alone.begin(GAME, seed=7)
    while not alone.finished:
        run(alone)
    random.seed(3)
    np.random.seed(3)
    expected = random.Random(3).random(), np.random.RandomState(3).random()
    pair = [PettingZoo(env=lambda: Countdown(dice=True)) for _ in range(2)]
    for arena in pair:
        arena.begin(GAME, seed=7)
    while not pair[0].finished:
        for arena in pair:
            run(arena)
    assert pair[0].paid == pair[1].paid == alone.paid
    assert (random.random(), np.random.random()) == expected


def test_a_task_may_name_the_seed() -> None:
    cards = set()
    for seed in range(12):
        arena = PettingZoo(env="classic/leduc_holdem-v4")
        arena.begin(Task(id="hand", payload={"seed": 3}), seed=seed)
        cards.add(arena.view(arena.stage[0]).text)
    assert len(cards) == 1


def test_the_prompt_of_a_game() -> None:
    arena = PettingZoo(
        env="classic/rps-v2", rules="Rock beats scissors.", action_names=["rock", "paper", "sci"]
    )
    arena.begin(GAME, seed=0)
    (message,) = Player(game="pettingzoo").prompt(arena.view("player_0"))
    assert message["content"] == (
        "You play rps_v2 as player_0.\nRock beats scissors.\n\n3\n\n"
        "Answer with one of these moves, and nothing else: rock, paper, sci"
    )
    assert (
        Player(game="pettingzoo", style="terse").prompt(arena.view("player_0"))[0]["content"]
        == "3\nlegal moves: rock, paper, sci"
    )


@pytest.mark.parametrize("arena", ["pettingzoo", "openspiel"])
def test_the_configs_compose(arena: str) -> None:
    groups = ["roles=pettingzoo", "curriculum=games", "evaluations=none", "warmstart=none"]
    config = load([f"arena={arena}", *groups, "services=none", "credit=grpo"])
    check(config)
    node = {key: value for key, value in config["arena"].items() if key != "_target_"}
    made = PettingZoo(**node)
    made.begin(made.default_task(random.Random(0)), seed=0)
    assert len(made.view("player_0").fields["legal"]) in (7, 9)
