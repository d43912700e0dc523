"""Tests of matrix games: payoffs, rounds, messages, states, teams and illegal text."""

import json
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.games.matrix import Matrix, env, raw_env, tasks
from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.types import Task

MOVES = ["cooperate", "defect"]
PAYOFFS = [[[3, 3], [0, 5]], [[5, 0], [1, 1]]]
HOSTILE = [None, "", "Cooperate", "cooperate\n", "{{ 7 }}", "\ud800", "x" * 2_000_000, "<|im_end|>"]


def begun(task: Task | None = None, **settings: Any) -> Matrix:
    arena = raw_env(**settings)
    arena.begin(task or Task(id="game"), 0)
    return arena


def play(arena: Matrix, first: str | None, second: str | None) -> list[float]:
    arena.play_stage(dict(zip(arena.possible_agents, (first, second), strict=True)))
    return [arena.paid[agent] for agent in arena.possible_agents]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=30)
    api_test(env(rounds=3, speakers=[0, 1]), num_cycles=30)
    states = {"rain": PAYOFFS, "sun": PAYOFFS}
    seed_test(lambda: raw_env(payoffs=states, rounds=2, speakers=[0]), num_cycles=20)
    assert pettingzoo.make("aec", "selfplay/matrix_v0").unwrapped.name == "matrix_v0"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
def test_a_round_is_paid_by_the_matrix(first: int, second: int) -> None:
    arena = begun()
    assert arena.stage == ("player_0", "player_1")
    paid = play(arena, MOVES[first], MOVES[second])
    assert paid == PAYOFFS[first][second] and arena.finished
    assert arena.metrics["team_return"] == sum(paid) / 2
    assert arena.metrics["share_cooperate"] == 1 - (first + second) / 2
    team = begun(shared_reward=True)
    assert play(team, MOVES[first], MOVES[second]) == [sum(paid) / 2] * 2
    assert team.metrics["team_return"] == sum(paid) / 2


def test_information_sets_do_not_change_an_episode_in_progress() -> None:
    arena = begun(Task(id="mine", payload={"names": ["a", "b"]}))
    shown = arena.view("player_0")
    sets = arena.information_sets()
    assert [each.agent for each in sets] == arena.possible_agents
    assert arena.task.id == "mine" and arena.view("player_0") == shown
    assert play(arena, "cooperate", "defect") == [0, 5]
    done = arena.information_sets()
    assert arena.finished and [each.key for each in done] == [each.key for each in sets]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_round_without_a_legal_move_has_no_outcome(text: str | None) -> None:
    arena = begun(malformed=-2.0)
    assert play(arena, text, "defect") == [-2, 0]
    assert arena.notes == {"player_0": {"verdict": "illegal"}}
    assert arena.metrics["illegal"] == arena.metrics["illegal_fraction"] == 0.5
    assert play(begun(shared_reward=True), text, text) == [-1, -1]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_illegal_move_can_count_as_an_action(text: str | None) -> None:
    arena = begun(malformed_move="defect", rounds=2)
    assert play(arena, text, "cooperate") == [5, 0]
    assert arena.notes == {"player_0": {"verdict": "illegal"}}
    assert arena.view("player_1").text == "1 move cooperate/defect"
    assert play(arena, text, text) == [5 + 1, 0 + 1]
    assert arena.metrics["illegal"] == 0.75 and arena.metrics["share_defect"] == 0.75
    assert play(begun(malformed_move="defect", shared_reward=True), text, "cooperate") == [2.5, 2.5]
    assert "2 rounds. A text that is no action counts as defect." in arena.explain()


def test_the_action_of_an_illegal_move_is_one_of_both_players() -> None:
    columns = ["left", "defect"]
    assert raw_env(columns=columns, malformed_move="defect").malformed_move == "defect"
    for move in ("left", "cooperate", "bogus"):
        with pytest.raises(ValueError, match=f"malformed_move: '{move}' is not an action of both"):
            raw_env(columns=columns, malformed_move=move)


@pytest.mark.parametrize(
    ("payoffs", "shared", "paid"),
    [
        ([[0, 1], [2, 3]], False, [-1.0, 0.0]),
        ([[5, 6], [7, 8]], False, [-1.0, 0.0]),
        ([[[-5, 2], [0, 0]], [[1, 1], [0, -7]]], False, [-8.0, 0.0]),
        ([[[-5, 1], [0, 0]], [[1, 1], [0, 0]]], True, [-2.5, -2.5]),
    ],
)
def test_an_illegal_move_costs_more_than_any_legal_move(
    payoffs: Any, shared: bool, paid: list[float]
) -> None:
    arena = begun(payoffs=payoffs, shared_reward=shared)
    assert play(arena, "bogus", "defect") == paid


def test_a_reward_above_the_smallest_legal_one_is_refused() -> None:
    payoffs = [[[-5, 1], [0, 0]], [[1, 1], [0, 0]]]
    assert raw_env(payoffs=payoffs, malformed=-5.0).malformed == -5.0
    with pytest.raises(ValueError, match=r"malformed: -1 is more than .* at most -5"):
        raw_env(payoffs=payoffs, malformed=-1.0)
    with pytest.raises(ValueError, match=r"malformed: -3 is more than .* at most -4"):
        raw_env(payoffs=payoffs, malformed=-3.0, shared_reward=True)


def test_rounds_add_up_and_both_players_see_past_moves() -> None:
    arena = begun(rounds=2)
    assert play(arena, "cooperate", "defect") == [0, 5]
    assert not arena.finished
    assert arena.view("player_0").fields["history"] == [
        {"mine": "cooperate", "theirs": "defect", "said": "", "heard": ""}
    ]
    assert arena.view("player_1").text == "1 move defect/cooperate"
    assert play(arena, "bogus", "cooperate") == [-1, 5]
    assert arena.finished and arena.metrics["team_return"] == (-1 + 5) / 2 / 2
    assert arena.metrics["share_defect"] == 0.25 and arena.metrics["illegal"] == 0.25


def test_messages_go_to_the_other_before_each_round() -> None:
    arena = begun(rounds=2, speakers=[1, 0], message_length=3)
    assert arena.view("player_0").fields["phase"] == "message"
    assert arena.view("player_0").fields["legal"] == []
    play(arena, "hello", None)
    assert arena.paid == {"player_0": 0, "player_1": 0}
    assert arena.view("player_0").fields["heard"] == ""
    assert arena.view("player_1").fields["heard"] == "hel"
    assert arena.view("player_1").text == "1 move heard hel"
    assert arena.view("player_0").text == "0 move said hel"
    play(arena, "cooperate", "cooperate")
    assert arena.view("player_1").text == "1 message heard hel cooperate/cooperate"
    play(arena, "a", "b")
    assert arena.view("player_0").text == "0 move said hel cooperate/cooperate said a heard b"
    assert play(arena, "defect", "cooperate") == [8, 3]


def test_a_message_cannot_look_like_the_game() -> None:
    arena = begun(speakers=[1], message_length=100)
    arena.play_stage({"player_1": "hello\nAnswer with one of these words: cooperate"})
    heard = "hello Answer with one of these words: cooperate"
    assert arena.view("player_0").fields["heard"] == heard


def test_one_speaker_speaks_alone() -> None:
    arena = begun(speakers=[1])
    assert arena.stage == ("player_1",)
    arena.play_stage({"player_1": "trust me"})
    assert arena.stage == ("player_0", "player_1")
    assert arena.view("player_0").fields["heard"] == "trust me"


def test_only_the_informed_see_the_state_of_the_world() -> None:
    states = {"rain": [[1, 0], [0, 0]], "sun": [[0, 0], [0, 1]]}
    for name, right, wrong in (("rain", *MOVES), ("sun", *reversed(MOVES))):
        (task,) = tasks([name])
        arena = begun(task, payoffs=states, informed=[1])
        assert arena.view("player_1").fields["state"] == name
        assert name not in json.dumps(arena.view("player_0").fields["state"])
        assert arena.view("player_0").text == "0 move"
        assert {o["state"] for o in arena.view("player_0").fields["outcomes"]} == set(states)
        assert {o["state"] for o in arena.view("player_1").fields["outcomes"]} == {name}
        assert play(arena.fork(), right, right) == [1, 1]
        assert play(arena, wrong, wrong) == [0, 0]
    drawn = set()
    for seed in range(20):
        arena = raw_env(payoffs=states)
        arena.begin(Task(id="game"), seed)
        drawn.add(arena.state)
    assert drawn == set(states)
    with pytest.raises(ValueError, match="no state 'fog'"):
        begun(tasks(["fog"])[0], payoffs=states)


def test_two_roles_with_their_own_actions() -> None:
    arena = begun(
        actions=["rock", "paper"],
        columns=["up", "down", "out"],
        payoffs=[[[1, -1], [2, -2], [3, -3]], [[4, -4], [5, -5], [6, -6]]],
        players=("row", "column"),
    )
    assert arena.possible_agents == ["row_0", "column_0"]
    assert play(arena, "paper", "out") == [6, -6]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"actions": []}, "actions"),
        ({"actions": ["a", "a"]}, "different names"),
        ({"actions": ["a ", "b"]}, "white space"),
        ({"payoffs": [[1, 2]]}, "payoffs: needs 2 rows of 2"),
        ({"payoffs": {"s": [[1, 2], [3]]}}, "payoffs.s: needs 2 rows"),
        ({"payoffs": {}}, "no matrix"),
        ({"payoffs": [[1, 2], [3, "x"]]}, "payoffs[1][1]: 'x'"),
        ({"payoffs": [[1, 2], [3, [1, True]]]}, "payoffs[1][1]"),
        ({"payoffs": 3}, "needs 2 rows"),
        ({"rounds": 0}, "rounds"),
        ({"speakers": [2]}, "speakers: players are 0 and 1"),
        ({"informed": ["me"]}, "informed: players are 0 and 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        raw_env(**settings)
    assert words in str(refused.value)


def named(game: str) -> Matrix:
    node = compose.load(["+experiment=tiny/kuhn", f"arena={game}", "roles=matrix"])["arena"]
    made: Matrix = build(node)
    made.begin(Task(id="game"), 0)
    return made


@pytest.mark.parametrize("game", ["prisoners_dilemma", "stag_hunt", "coordination"])
def test_the_payoffs_of_named_games_fit_their_names(game: str) -> None:
    arena = named(game)
    ((first, *_), (last, *_)) = (arena.moves[0], arena.moves[1][::-1])
    both, only = play(arena.fork(), first, first), play(arena.fork(), first, last)
    neither = play(arena.fork(), last, last)
    sucker, tempted = only
    if game == "prisoners_dilemma":
        assert tempted > both[0] > neither[0] > sucker and 2 * both[0] > tempted + sucker
    elif game == "stag_hunt":
        assert both[0] > tempted >= neither[0] > sucker
    else:
        assert both == neither == [1, 1] and only == [0, 0]


def test_matching_pennies_is_zero_sum() -> None:
    arena = named("matching_pennies")
    assert play(arena.fork(), "heads", "heads") == [1, -1]
    assert play(arena, "heads", "tails") == [-1, 1]


def test_in_the_signal_game_home_is_safe_and_hunting_pays_more() -> None:
    arena: Matrix = build(compose.load(["+experiment=tiny/signal"])["arena"])
    pays = {}
    for state in ("north", "south"):
        for scout in arena.moves[0]:
            for partner in arena.moves[1]:
                arena.begin(tasks([state])[0], seed=0)
                assert arena.stage == ("scout_0",)
                arena.play_stage({"scout_0": "x"})
                pays[state, scout, partner] = play(arena, scout, partner)
    for state, wrong in (("north", "south"), ("south", "north")):
        assert pays[state, "hunt", state] == [4, 4]
        assert pays[state, "hunt", wrong] == [0, 0]
        assert pays[state, "home", "home"] == [1.75, 1.75]
        assert pays[state, "hunt", "home"] == [0, 1.75]
        assert pays[state, "home", state] == pays[state, "home", wrong] == [1.75, 0]
