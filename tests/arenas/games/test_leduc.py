"""Tests of Leduc poker: hands by hand, and rules and exploitability against OpenSpiel."""

import pickle
from collections import Counter
from random import Random
from typing import Any

import pettingzoo
import pyspiel
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games import kuhn, leduc
from arenas.games.leduc import Leduc, deals, env, raw_env
from roles.player import Player
from selfplay.arena import Arena
from selfplay.study.measures.exploitability import exploitability, known_game
from selfplay.study.policy_probs import ActionDistribution
from selfplay.types import Task
from tests.helpers.game_tree import Line, lines, nash_conv, situations, value

HANDS = [
    # the cards of player_0 and player_1, the open card, the moves, the payoff of player_0
    ("KQJ", "call call call call", 1),
    ("QKJ", "call call call call", -1),
    ("JKJ", "call call call call", 1),  # a pair beats the king
    ("KKJ", "raise call raise call", 0),
    ("KQJ", "raise fold", 1),
    ("KQJ", "call raise fold", -1),
    ("KQJ", "raise raise fold", -3),
    ("KQQ", "raise raise call raise raise call", -13),
    ("KQK", "raise raise call raise raise call", 13),
    ("KQK", "call raise call call raise fold", -3),
]


def begun(cards: str, **settings: Any) -> Leduc:
    arena = Leduc(**settings)
    arena.begin(Task(id="t", payload={"cards": list(cards)}), seed=0)
    return arena


def play(arena: Leduc, *moves: str | None) -> list[float]:
    for move in moves:
        arena.play_stage({arena.stage[0]: move})
    return [arena.paid[agent] for agent in arena.possible_agents]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(illegal="random_legal"), num_cycles=50)
    api_test(env(), num_cycles=20)
    seed_test(raw_env, num_cycles=20)
    assert pettingzoo.make("aec", "selfplay/leduc_v0").unwrapped.name == "leduc_v0"


@pytest.mark.parametrize(("cards", "moves", "won"), HANDS)
def test_a_hand_is_paid_by_the_rules(cards: str, moves: str, won: float) -> None:
    arena = begun(cards)
    assert play(arena, *moves.split()) == [won, -won] and arena.finished
    assert arena.metrics["player_0_payoff"] == won and arena.metrics["illegal"] == 0
    assert arena.metrics["raises"] == moves.count("raise")


def test_every_line_agrees_with_openspiel() -> None:
    game = pyspiel.load_game("leduc_poker(suit_isomorphism=true)")
    arena, states = Leduc(), 0
    keys = {(each.agent, each.observation.text): each for each in arena.information_sets()}

    def walk(state: pyspiel.State, cards: str, moves: list[str]) -> None:
        nonlocal states
        states += 1
        if state.is_chance_node():
            for card, _ in state.chance_outcomes():
                after = state.child(card)
                walk(after, cards + leduc.CARDS[card], moves)
            return
        # before the open card is shown, any card that is left can be used
        left = next(c for c in leduc.CARDS if (cards + c).count(c) < 3 and cards.count(c) < 2)
        played = begun((cards + left)[:3])
        play(played, *moves)
        if state.is_terminal():
            assert played.finished and list(played.paid.values()) == state.returns()
            return
        (agent,) = played.stage
        player = state.current_player()
        assert agent == f"player_{player}"
        legal = played.view(agent).fields["legal"]
        assert [leduc.MOVES.index(move) for move in legal] == state.legal_actions()
        where = keys[agent, played.view(agent).text]
        assert where.key == state.information_state_string(player)
        for move in legal:
            walk(state.child(leduc.MOVES.index(move)), cards, [*moves, move])

    walk(game.new_initial_state(), "", [])
    assert states > 1000


def random_strategy(tree: list[Line], seed: int) -> dict[tuple[str, str], dict[str, float]]:
    rng = Random(seed)
    found = {}
    for agent, seen, moves in situations(tree):
        weights = [rng.random() ** 3 for _ in moves]
        found[agent, seen] = {
            move: weight / sum(weights) for move, weight in zip(moves, weights, strict=True)
        }
    return found


@pytest.mark.parametrize(
    ("arena", "hands"), [(kuhn.Kuhn(), kuhn.deals()), (Leduc(), deals())], ids=["kuhn", "leduc"]
)
def test_exploitability_agrees_with_openspiels(arena: Arena, hands: list[Task]) -> None:
    """Compare the values of the arena's own game tree with those of OpenSpiel's game."""
    # deals of equal ranks look the same: keep one of each, weighted by their number
    alike = Counter(str(task.payload) for task in hands)
    first = {str(task.payload): task for task in hands}
    tree = [
        line._replace(chance=count / len(hands))
        for key, count in alike.items()
        for line in lines(arena, [first[key]])
    ]
    game, sets = known_game(arena)
    for seed in range(3):
        table = random_strategy(tree, seed)
        assert set(table) == {(each.agent, each.observation.text) for each in sets}
        found = exploitability(
            game,
            [
                ActionDistribution(where=s, mass=dict(table[s.agent, s.observation.text]))
                for s in sets
            ],
        )

        def strategy(
            agent: str, seen: str, table: dict[tuple[str, str], dict[str, float]] = table
        ) -> dict[str, float]:
            return table[agent, seen]

        agents = arena.possible_agents
        values = [value(tree, agent, strategy) for agent in agents]
        assert values == pytest.approx(found.values, abs=1e-9)
        own = nash_conv(tree, agents, strategy)
        assert own == pytest.approx(found.nash_conv, abs=1e-9) and own > 0.1
        assert found.exploitability == pytest.approx(own / 2, abs=1e-9)


def test_uniform_play() -> None:
    game, sets = known_game(Leduc())
    uniform = [
        ActionDistribution(where=each, mass=dict.fromkeys(each.actions, 1.0)) for each in sets
    ]
    found = exploitability(game, uniform)
    assert found.nash_conv == pytest.approx(4.747222222, abs=1e-9)
    assert found.values == pytest.approx((-0.078125, 0.078125), abs=1e-12)


@pytest.mark.parametrize("text", [None, "", "fold", "Raise", "raise 2", "\ud800", "{{ 1 }}"])
def test_an_illegal_move_forfeits_the_maximum(text: str | None) -> None:
    assert play(begun("KJQ"), text) == [-13, 13]  # "fold" is illegal before a raise
    arena = begun("KJQ")
    assert play(arena, "raise", "raise", "raise") == [-13, 13]
    assert arena.metrics["illegal"] == arena.metrics["forfeit"] == 1
    assert arena.metrics["raises"] == 2


def test_an_illegal_move_may_be_retried_or_replaced() -> None:
    arena = begun("KJQ", illegal="retry")
    assert play(arena, "fold", None) == [0, 0] and arena.stage == ("player_0",)
    assert arena.view("player_0").text == "K not legal: nothing"
    assert arena.view("player_1").text == "J"
    play(arena, "call")
    assert arena.stage == ("player_1",) and arena.view("player_1").text == "J call"
    drawn = begun("KJQ", illegal="random_legal")
    while not drawn.finished:
        play(drawn, "nonsense")
    assert drawn.metrics["illegal"] == len(drawn.history) and drawn.metrics["forfeit"] == 0
    assert drawn.metrics["illegal_fraction"] == 1.0


def test_forks_pickles_and_replays() -> None:
    arena = begun("KJQ", illegal="random_legal")
    play(arena, "raise", "nonsense")
    copies = [arena.fork(), pickle.loads(pickle.dumps(arena))]
    while not arena.finished:
        play(arena, "nonsense")
    for copied in copies:
        assert not copied.finished
        while not copied.finished:
            play(copied, "nonsense")
        assert copied.paid == arena.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


def test_all_deals_are_listed() -> None:
    assert len(deals()) == len({task.id for task in deals()}) == 120
    for cards in (["K"], ["K", "K", "K"], ["A", "K", "Q"]):
        with pytest.raises(ValueError, match="needs three cards of"):
            Leduc().begin(Task(id="t", payload={"cards": cards}), seed=0)


def test_the_prompts() -> None:
    arena = begun("KJQ")
    play(arena, "raise", "call", "call")
    terse, full = (
        Player(game="leduc", style=style).prompt(arena.view("player_1"))[0]["content"]
        for style in ("terse", "full")
    )
    assert terse == "J raise call Q call"
    assert full.splitlines()[-5:] == [
        "",
        "Answer with one word: call or raise.",
        "First round: raise, call.",
        "The open card is a queen. Second round: call.",
        "You hold a jack.",
    ]
