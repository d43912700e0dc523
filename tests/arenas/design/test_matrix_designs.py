"""Tests of designs of matrix games: limits, canonical form, and regret by hand."""

import json
from random import Random
from typing import Any

import pytest

from arenas.design.matrix_designs import MatrixDesigns
from arenas.design.space import RefusedDesign, names_of, play_task, play_tasks, read_design
from arenas.games.matrix import Matrix
from selfplay.types import Task

TEAM = MatrixDesigns(actions=(2, 3), rounds=(1, 2))
DUEL = MatrixDesigns(payoff="zero_sum", actions=(2, 3), rounds=(1, 2))
STAG = {"rounds": 1, "payoffs": [[4, 0], [0, 3]]}


def test_a_written_design_is_read_back_unchanged() -> None:
    assert read_design(TEAM, json.dumps(STAG), longest=100) == STAG
    assert read_design(TEAM, TEAM.written(STAG), longest=100) == STAG
    for seed in range(200):
        for space in (TEAM, DUEL):
            drawn = space.draw(Random(seed))
            assert space.read(drawn) == drawn


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "malformed"),
        ("", "no_json"),
        ("a game, please", "no_json"),
        ("[" * 1900, "no_json"),
        ('{"a":' * 390, "no_json"),
        ("9" * 10_000_000, "too_long"),
        ("9" * 1900, "no_object"),
        ("[]", "no_object"),
        ("null", "no_object"),
        ("{}", "missing_key"),
        ('{"rounds": 1}', "missing_key"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, 4]], "_target_": "os.system"}', "unknown_key"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, 4]], "malformed": 9}', "unknown_key"),
        ('{"rounds": 3, "payoffs": [[1, 2], [3, 4]]}', "out_of_bounds"),
        ('{"rounds": 0, "payoffs": [[1, 2], [3, 4]]}', "out_of_bounds"),
        ('{"rounds": true, "payoffs": [[1, 2], [3, 4]]}', "no_integer"),
        ('{"rounds": 1.0, "payoffs": [[1, 2], [3, 4]]}', "no_integer"),
        ('{"rounds": "1", "payoffs": [[1, 2], [3, 4]]}', "no_integer"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, NaN]]}', "no_integer"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, Infinity]]}', "no_integer"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, 1e999]]}', "no_integer"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, 2.5]]}', "no_integer"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, null]]}', "no_integer"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, [4]]]}', "no_integer"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, 10]]}', "out_of_bounds"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, -1]]}', "out_of_bounds"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3, ' + "9" * 1500 + "]]}", "out_of_bounds"),
        ('{"rounds": 1, "payoffs": [[1, 2], [3]]}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": [[1, 2]]}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": [[1], [2]]}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": [[1, 2, 3, 4], [1, 2, 3, 4]]}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": "ab"}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": ["12", "34"]}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": {"0": [1, 2], "1": [3, 4]}}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": 7}', "wrong_shape"),
        ('{"rounds": 1, "payoffs": [[5, 5], [5, 5]]}', "flat"),
        ('{"rounds": {}, "payoffs": []}', "no_integer"),
    ],
)
def test_a_hostile_design_is_refused_with_its_reason(text: str | None, reason: str) -> None:
    with pytest.raises(RefusedDesign) as refused:
        read_design(TEAM, text, longest=2000)
    assert str(refused.value) == reason


def test_an_integer_beyond_the_parser_is_refused() -> None:
    with pytest.raises(RefusedDesign, match="no_json"):
        read_design(TEAM, '{"rounds": ' + "9" * 5000 + "}", longest=10_000)


@pytest.mark.parametrize(
    "same",
    [
        [[0, 4], [3, 0]],  # the second player's actions in another order
        [[0, 3], [4, 0]],  # the first player's actions
        [[3, 0], [0, 4]],  # both
        [[8, 0], [0, 6]],  # another unit
        [[5, 1], [1, 4]],  # another zero
    ],
)
def test_designs_of_the_same_game_have_one_task_id(same: Any) -> None:
    other = {"rounds": 1, "payoffs": same}
    assert play_task(TEAM, other).id == play_task(TEAM, STAG).id


def test_exchanged_players_are_the_same_game() -> None:
    wide = {"rounds": 1, "payoffs": [[1, 2, 3], [4, 5, 9]]}
    tall = {"rounds": 1, "payoffs": [[1, 4], [2, 5], [3, 9]]}
    assert play_task(TEAM, wide).id == play_task(TEAM, tall).id
    loser = {"rounds": 1, "payoffs": [[-1, -4], [-2, -5], [-3, -9]]}
    assert play_task(DUEL, wide).id == play_task(DUEL, loser).id
    assert play_task(DUEL, wide).id != play_task(DUEL, tall).id


@pytest.mark.parametrize(
    "other",
    [
        {"rounds": 2, "payoffs": [[4, 0], [0, 3]]},
        {"rounds": 1, "payoffs": [[4, 0], [0, 2]]},
        {"rounds": 1, "payoffs": [[4, 0], [3, 0]]},
        {"rounds": 1, "payoffs": [[-4, 0], [0, -3]]},
    ],
)
def test_other_games_have_other_task_ids(other: Any) -> None:
    assert play_task(TEAM, other).id != play_task(TEAM, STAG).id


def test_random_relabelling_never_changes_the_canonical_form() -> None:
    rng = Random(0)
    for _ in range(200):
        drawn = TEAM.draw(rng)
        width = len(drawn["payoffs"][0])
        order = rng.sample(range(width), width)
        table = [[row[place] for place in order] for row in drawn["payoffs"]]
        rng.shuffle(table)
        assert TEAM.canonical({**drawn, "payoffs": table}) == TEAM.canonical(drawn)


def played(space: MatrixDesigns, settings: Any, *moves: tuple[str, str]) -> tuple[Matrix, float]:
    game = space.game(settings)
    assert isinstance(game, Matrix)
    game.begin(Task(id="game"), 0)
    for first, second in moves:
        game.play_stage({"player_0": first, "player_1": second})
    assert game.finished
    return game, space.score(settings, game)


@pytest.mark.parametrize(
    ("moves", "pay", "score"),
    [
        (("a", "a"), [4, 4], 1.0),
        (("b", "b"), [3, 3], 0.75),  # 1 of 4 below the best
        (("a", "b"), [0, 0], 0.0),
        (("a", "c"), [0, -1], 0.0),  # no such action
    ],
)
def test_the_regret_of_a_team(moves: tuple[str, str], pay: list[float], score: float) -> None:
    game, found = played(TEAM, STAG, moves)
    assert found == pytest.approx(score)
    assert list(game.paid.values()) == pay


def test_regret_does_not_depend_on_unit_and_zero() -> None:
    assert played(TEAM, {"rounds": 1, "payoffs": [[9, 1], [1, 7]]}, ("b", "b"))[1] == 0.75


def test_the_score_of_several_rounds_is_a_mean() -> None:
    twice = {**STAG, "rounds": 2}
    assert played(TEAM, twice, ("a", "a"), ("a", "b"))[1] == 0.5


@pytest.mark.parametrize(
    ("moves", "pay", "score"),
    [
        # Matching pennies, entries 2 apart: the loser regrets 2 of 2, the winner 0.
        (("a", "a"), [1, -1], 0.5),
        (("a", "b"), [-1, 1], 0.5),
        (("", "b"), [-2, 0], 0.0),
    ],
)
def test_the_regret_in_a_duel(moves: tuple[str, str], pay: list[float], score: float) -> None:
    pennies = {"rounds": 1, "payoffs": [[1, -1], [-1, 1]]}
    game = DUEL.game(pennies)
    game.begin(Task(id="game"), 0)
    game.play_stage({"player_0": moves[0], "player_1": moves[1]})
    pay[0] = -10 if not moves[0] else pay[0]  # 1 less than the least payoff of any design
    assert list(game.paid.values()) == pay
    assert DUEL.score(pennies, game) == score


def test_a_saddle_point_has_no_regret() -> None:
    # (a, b) is the minimum of its row and the maximum of its column.
    saddle = {"rounds": 1, "payoffs": [[3, 2], [1, 0]]}
    assert played(DUEL, saddle, ("a", "b"))[1] == 1.0
    # (b, a): the first could have got 3, not 1; the second could have lost 0, not 1. Entries are
    # 3 apart, so the regret is (2 + 1) / 2 / 3.
    assert played(DUEL, saddle, ("b", "a"))[1] == 0.5


def test_tasks_are_given_and_drawn() -> None:
    tasks = play_tasks(space=TEAM, count=50, seed=3, designs=[STAG])
    assert len({task.id for task in tasks}) == 51 and tasks[0].payload["settings"] == STAG
    assert tasks == play_tasks(space=TEAM, count=50, seed=3, designs=[STAG])
    others = play_tasks(space=TEAM, count=50, seed=3, forbidden=names_of(tasks))
    assert not {task.id for task in others} & {task.id for task in tasks}
    with pytest.raises(ValueError, match="out_of_bounds"):
        play_tasks(space=TEAM, designs=[{"rounds": 9, "payoffs": [[1, 2], [3, 4]]}])
    with pytest.raises(ValueError, match="fewer than 99"):
        play_tasks(space=MatrixDesigns(actions=(2, 2), largest=1), count=99)


@pytest.mark.parametrize(
    "settings",
    [
        {"payoff": "love"},
        {"actions": (1, 3)},
        {"actions": (2, 6)},
        {"actions": (3, 2)},
        {"rounds": (0, 1)},
        {"rounds": (1, 21)},
        {"largest": 0},
        {"largest": 1000},
    ],
)
def test_settings_of_a_space_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"payoff|actions|rounds"):
        MatrixDesigns(**settings)
