"""Tests of the player's prompts and of the text that is its action."""

import pytest

from arenas.games.kuhn import Kuhn, seen
from arenas.games.long_road import LongRoad
from arenas.games.matrix import raw_env
from roles.player import Player
from selfplay.errors import ConfigError
from selfplay.types import InvalidAction, Task


def said(role: Player, observation: object) -> str:
    (message,) = role.prompt(observation)  # type: ignore[arg-type]
    return str(message["content"])


def test_the_whole_text_is_the_action() -> None:
    role = Player(game="kuhn", style="terse")
    assert role.parse(" bet\n") == "bet"
    assert role.parse("I bet") == "I bet"
    with pytest.raises(InvalidAction, match="empty"):
        role.parse(" \n")


def test_a_terse_prompt_is_the_text_of_the_observation() -> None:
    assert said(Player(game="kuhn", style="terse"), seen("Q", ["pass", "bet"])) == "Q pass bet"
    arena = raw_env()
    arena.begin(Task(id="game"), 0)
    assert said(Player(game="matrix", style="terse"), arena.view("player_1")) == "1 move"


def test_a_full_prompt_shows_the_rules_and_the_hand() -> None:
    role = Player(game="kuhn")
    first, second = said(role, seen("K", [])), said(role, seen("J", ["pass", "bet"]))
    assert "You hold the king" in first and "You move first." in first and "pass or bet" in first
    assert "You hold the jack" in second and "pass, bet" in second
    texts = {said(role, each.observation) for each in Kuhn().information_sets()}
    assert len(texts) == 12


def test_a_full_prompt_of_a_matrix_game() -> None:
    states = {"rain": [[[3, 3], [0, 5]], [[5, 0], [1, 1]]], "sun": [[0, 0], [0, 0]]}
    arena = raw_env(payoffs=states, rounds=2, speakers=[0, 1])
    arena.begin(Task(id="game", payload={"state": "rain"}), 0)
    role = Player(game="matrix")
    informed, other = (said(role, arena.view(agent)) for agent in arena.possible_agents)
    assert "it is rain" in informed and "sun" not in informed
    assert "rain: you cooperate, the other defect: you get 0, the other gets 5" in other
    assert "Write a message of at most 80 characters" in other
    arena.play_stage({"player_0": "let us cooperate", "player_1": "{{ boo }}"})
    text = said(role, arena.view("player_0"))
    assert "The other said: {{ boo }}" in text and "You said: let us cooperate" in text
    assert text.endswith("Answer with one of these words: cooperate, defect.")
    arena.play_stage({"player_0": "cooperate", "player_1": "defect"})
    past = said(role, arena.view("player_1"))
    assert 'Round 1: you said "{{ boo }}", the other said "let us cooperate", you chose' in past


def test_a_full_prompt_of_the_long_road() -> None:
    arena = LongRoad(rounds=4, forks=2)
    arena.begin(Task(id="game"), 0)
    role = Player(game="long_road")
    between = said(role, arena.view("walker_1"))
    assert "road of 4 rounds" in between and "You are walker 1." in between
    assert "You are between forks." in between and "You stand" not in between
    assert between.endswith("Answer with one word: left or right.")
    for _ in range(3):
        arena.play_stage({"walker_0": "left", "walker_1": "left"})
    text = said(role, arena.view("walker_0"))
    assert "Forks met so far: 1. Passed: 1." in text and "You stand at a fork." in text


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'terse'"):
        Player(game="kuhn", style="ters")
