"""Tests of the public-goods game: pay by hand, what players see, illegal text, demonstrations."""

from itertools import islice
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games.conditional_cooperation import ConditionalCooperation
from arenas.games.public_goods import PublicGoods, env, raw_env
from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.experiment.experiment import check
from selfplay.role import Role
from selfplay.types import Task

HOSTILE = [None, "", "Give", "give\n", "{{ 7 }}", "\ud800", "x" * 2_000_000, "<|im_end|>"]


def begun(**settings: Any) -> PublicGoods:
    arena = raw_env(**settings)
    arena.begin(Task(id="game"), 0)
    return arena


def play(arena: PublicGoods, *moves: str | None) -> list[float]:
    arena.play_stage(dict(zip(arena.possible_agents, moves, strict=True)))
    return [arena.paid[agent] for agent in arena.possible_agents]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(rounds=3), num_cycles=30)
    seed_test(lambda: env(rounds=2, players=["one", "two", "two"]), num_cycles=20)
    made = pettingzoo.make("aec", "selfplay/public_goods_v0")
    assert made.unwrapped.name == "public_goods_v0"


def test_pay_by_hand() -> None:
    """Three of four coins are given: each player gets 1.6 * 3 / 4, and the keeper 1 more."""
    arena = begun(rounds=2)
    assert play(arena, "give", "keep", "give", "give") == pytest.approx([1.2, 2.2, 1.2, 1.2])
    assert play(arena, *["keep"] * 4) == pytest.approx([2.2, 3.2, 2.2, 2.2])
    assert arena.finished and arena.metrics == pytest.approx(
        {"team_return": (3 * 1.2 + 2.2 + 4) / 8, "share_give": 3 / 8, "illegal_fraction": 0}
    )


def test_keeping_is_dominant_and_all_are_better_off_if_all_give() -> None:
    for given in range(4):
        others = ["give"] * given + ["keep"] * (3 - given)
        assert play(begun(), "keep", *others)[0] > play(begun(), "give", *others)[0]
    assert play(begun(), *["give"] * 4) == pytest.approx([1.6] * 4)
    assert play(begun(), *["keep"] * 4) == pytest.approx([1.0] * 4)


def test_a_shared_reward_is_the_mean() -> None:
    arena = begun(shared_reward=True)
    assert play(arena, "give", "keep", "give", "give") == pytest.approx([(3 * 1.2 + 2.2) / 4] * 4)


def test_players_see_their_own_move_and_those_of_the_others() -> None:
    arena = begun(rounds=3, players=["first", "other", "other"])
    play(arena, "give", "keep", "give")
    assert arena.view("first_0").text == "move give/1"
    (seen,) = arena.view("other_0").fields["history"]
    assert seen == {"mine": "keep", "theirs": ["give", "give"], "gave": 2}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_is_no_move_counts_as_giving_and_costs_a_fine(text: str | None) -> None:
    arena = begun(rounds=2, fine=0.5)
    assert play(arena, text, "keep", "give", "give") == pytest.approx([0.7, 2.2, 1.2, 1.2])
    assert arena.notes == {"player_0": {"verdict": "illegal"}}
    assert arena.view("player_1").text == "move keep/3"
    play(arena, *["keep"] * 4)
    assert arena.metrics["illegal_fraction"] == 1 / 8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"players": ["one"]}, "players: the game needs at least two"),
        ({"multiplier": -1.0}, "multiplier and fine are at least 0, not -1 and 1"),
        ({"rounds": 0}, "rounds is at least 1, not 0"),
        ({"actions": ("give", "give")}, "two different words"),
        ({"actions": ("give ", "keep")}, "without white space"),
    ],
)
def test_settings_that_make_no_game_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        raw_env(**settings)


def test_the_drawing_has_a_row_for_each_round() -> None:
    arena = begun(rounds=3, players=["first", "second"])
    play(arena, "give", "keep")
    texts = [shape.text for shape in arena.draw("second_0").shapes if shape.kind == "text"]
    assert {"1", "first_0", "second_0", "give", "keep"} <= set(texts)


# Demonstrations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("errs", "enough"), [(0.0, 0.5), (0.1, 0.5), (0.1, 1.0), (0.5, 0.5)])
def test_demonstrations_give_if_enough_others_gave(errs: float, enough: float) -> None:
    """Each of 9 situations has 400 demonstrations: five standard deviations are at most 0.125."""
    source = ConditionalCooperation(
        errs=errs, enough=enough, arena=raw_env(rounds=2), named_first=0.0, named_last=0.0
    )
    assert len(source.situations) == 9  # the beginning; own move and 0 to 3 others that gave
    found: dict[str, list[bool]] = {}
    for each in islice(source.stream(Random(0), 0.9), 9 * 400):
        found.setdefault(each.observation.text, []).append(each.completion == "give")
    for text, gives in found.items():
        others = int(text[-1]) if "/" in text else None
        truth = 0.5 if others is None else errs if others < 3 * enough else 1 - errs
        within = 5 * (truth * (1 - truth) / 400) ** 0.5 + 1e-9
        assert sum(gives) / len(gives) == pytest.approx(truth, abs=within)


def test_fractions_of_the_demonstrations_are_checked() -> None:
    with pytest.raises(ValueError, match=r"errs and enough lie in \[0, 1\]"):
        ConditionalCooperation(errs=0.1, enough=2.0, arena=raw_env(rounds=2))


def test_every_prompt_of_the_experiment_is_demonstrated() -> None:
    """A prompt that shows only the last round equals a prompt of a game of two rounds."""
    settings = compose.load(["+experiment=tiny/public_goods"])
    check(settings)
    role: Role = build(settings["roles"]["player"], where="roles.player")
    arena = build(settings["arena"], where="arena")
    pieces = set(build(settings["warmstart"]["demonstrations"], where="demonstrations").pieces())
    arena.begin(arena.default_task(Random(0)), 0)
    rng = Random(1)
    while not arena.finished:
        for agent in arena.stage:
            assert role.prompt(arena.view(agent))[-1]["content"] in pieces
        arena.play_stage({agent: rng.choice(["give", "keep"]) for agent in arena.stage})


def test_the_full_prompt_states_the_rules_and_the_moves() -> None:
    role: Role = build({"_target_": "roles.player.Player", "game": "public_goods"}, where="role")
    arena = begun(rounds=3)
    play(arena, "give", "keep", "give", "give")
    text = role.prompt(arena.view("player_0"))[-1]["content"]
    assert "You and 3 other players choose at the same time, 3 times; this is round 2." in text
    assert "A coin that you give pays each of the 4 players 0.4." in text
    assert "Round 1: you chose give, and 2 of the 3 others chose give." in text
    two = begun(rounds=2, players=["a", "b"])
    play(two, "keep", "give")
    text = role.prompt(two.view("a_0"))[-1]["content"]
    assert "You and 1 other player choose" in text
    assert "you chose keep, and 1 of the 1 other chose give." in text
