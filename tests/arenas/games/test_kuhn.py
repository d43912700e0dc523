"""Tests of Kuhn poker: hands by hand, conformance, and illegal text."""

from itertools import permutations

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games.kuhn import MOVES, TO_ACT, Kuhn, deals, env, raw_env
from selfplay.types import Task

HANDS = [
    # the cards of player_0 and player_1, the moves, the payoff of player_0
    ("KQ", ["pass", "pass"], 1),
    ("JQ", ["pass", "pass"], -1),
    ("JK", ["bet", "pass"], 1),
    ("KJ", ["pass", "bet", "pass"], -1),
    ("QJ", ["bet", "bet"], 2),
    ("QK", ["bet", "bet"], -2),
    ("KJ", ["pass", "bet", "bet"], 2),
    ("JQ", ["pass", "bet", "bet"], -2),
]


def begun(cards: str = "KQ", **settings: str) -> Kuhn:
    arena = Kuhn(**settings)  # type: ignore[arg-type]
    arena.begin(Task(id="t", payload={"cards": list(cards)}), seed=0)
    return arena


def play(arena: Kuhn, *moves: str | None) -> list[float]:
    for move in moves:
        arena.play_stage({arena.stage[0]: move})
    return [arena.paid[agent] for agent in arena.possible_agents]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=50)
    api_test(env(), num_cycles=50)
    seed_test(raw_env, num_cycles=20)
    made = pettingzoo.make("aec", "selfplay/kuhn_v0")
    assert made.unwrapped.name == "kuhn_v0"


@pytest.mark.parametrize(("cards", "moves", "won"), HANDS)
def test_a_hand_is_paid_by_the_rules(cards: str, moves: list[str], won: float) -> None:
    arena = begun(cards)
    for number, move in enumerate(moves):
        assert not arena.finished and arena.stage == (f"player_{number % 2}",)
        play(arena, move)
    assert arena.finished
    assert [arena.paid["player_0"], arena.paid["player_1"]] == [won, -won]
    assert arena.metrics["player_0_payoff"] == won and arena.metrics["illegal"] == 0
    assert arena.metrics["bets"] == moves.count("bet")


@pytest.mark.parametrize("text", [None, "", "fold", "bet!", "Bet", "pass bet", "<|im_end|>", "\0"])
def test_an_illegal_move_forfeits_the_maximum(text: str | None) -> None:
    assert play(begun("KJ"), text) == [-2, 2]
    arena = begun("KJ")
    assert play(arena, "pass", text) == [2, -2]
    assert arena.finished and arena.metrics["illegal"] == 1
    assert arena.metrics["illegal_fraction"] == 1 / len(arena.history)
    assert arena.notes == {"player_1": {"verdict": "illegal"}}


def test_an_illegal_move_may_count_as_a_pass() -> None:
    arena = begun("KJ", illegal="pass")
    assert play(arena, "raise") == [0, 0]
    assert arena.notes == {"player_0": {"verdict": "illegal"}}
    assert play(arena, "bet", "bet") == [2, -2]
    assert arena.metrics["illegal"] == 1 and arena.metrics["illegal_fraction"] == 1 / 3
    assert play(begun("KJ", illegal="pass"), "pass", None) == [1, -1]


def test_hostile_text_is_not_shown() -> None:
    for text in ["{{ 1 }}", "\ud800", "x" * 2_000_000, "<|im_start|>user\n", "pass\n"]:
        arena = begun("QJ")
        play(arena, text)
        assert arena.finished
        assert all("x" * 9 not in arena.view(agent).text for agent in arena.possible_agents)


def test_a_player_sees_its_own_card_and_all_moves() -> None:
    arena = begun("KQ")
    assert arena.view("player_0").text == "K" and arena.view("player_1").text == "Q"
    play(arena, "pass", "bet")
    assert arena.view("player_0").text == "K pass bet"
    assert arena.view("player_0").fields == {
        "card": "K",
        "moves": ["pass", "bet"],
        "legal": ["pass", "bet"],
    }


def test_each_information_set_has_one_text() -> None:
    """The observations over all deals and all legal moves are those that the arena lists."""
    seen: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for cards in permutations("JQK", 2):
        for moves in TO_ACT:
            arena = begun("".join(cards))
            play(arena, *moves)
            (agent,) = arena.stage
            card = cards[arena.possible_agents.index(agent)]
            seen.setdefault((agent, card, moves), set()).add(arena.view(agent).text)
    assert len(seen) == 12 and all(len(texts) == 1 for texts in seen.values())
    listed = Kuhn().information_sets()
    assert {(each.agent, each.observation.text) for each in listed} == {
        (agent, *texts) for (agent, _, _), texts in seen.items()
    }
    assert len({each.observation.text for each in listed}) == 12
    assert all(tuple(each.actions) == MOVES for each in listed)


def test_cards_come_from_the_seed_or_from_the_task() -> None:
    dealt = set()
    for seed in range(40):
        arena = Kuhn()
        arena.begin(Task(id="hand"), seed)
        dealt.add(tuple(arena.cards))
    assert dealt == set(permutations("JQK", 2))
    assert {tuple(task.payload["cards"]) for task in deals()} == dealt
    with pytest.raises(ValueError, match="two different"):
        begun("KK")
    with pytest.raises(ValueError, match="illegal is one of"):
        Kuhn(illegal="nothing")  # type: ignore[arg-type]


def test_replay_and_fork_give_the_same_hand() -> None:
    arena = Kuhn()
    arena.begin(Task(id="hand"), 5)
    play(arena, "pass", "bet")
    twin = arena.fork()
    assert play(arena, "bet") == play(twin, "bet")
    history = list(arena.history)
    arena.replay(history)
    assert arena.paid == twin.paid and arena.metrics == twin.metrics
