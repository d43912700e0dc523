"""Role swaps with tables and gains that are worked out by hand."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product
from random import Random

import numpy as np
import pytest

from arenas.games.matrix import raw_env
from selfplay.arena import Arena
from selfplay.engines.scripted import constant
from selfplay.errors import ConfigError
from selfplay.study.measures.role_swap import shapley, study
from selfplay.study.players import StudyPlayer
from selfplay.study.result import Result
from selfplay.study.stats.bootstrap import Estimate
from selfplay.types import Action, Observation, Task
from tests.helpers.scripted_games import games, player

ROLES = ("row", "column")


def by_name(result: Result) -> dict[str, Estimate]:
    return {each.name: each for each in result.estimates}


def swap(payoffs: list[list[list[float]]], **settings: object) -> Result:
    """Return a study of a trained player with the first action and an untrained with the second."""

    def arena():  # type: ignore[no-untyped-def]
        return raw_env(actions=["new", "old"], payoffs=payoffs, players=["row", "column"])

    made = games(arena, {"trained": constant("new"), "base": constant("old")}, **settings)
    return study(made, [player("trained", arena), player("base", arena)])


def test_additive_gains_have_no_co_adaptation() -> None:
    found = by_name(swap([[[5, 5], [3, 3]], [[2, 2], [0, 0]]]))
    assert found["joint gain, trained over base"].value == 5
    assert found["gain of row alone"].value == 3 and found["gain of column alone"].value == 2
    assert found["lost with base as row"].value == 3
    assert found["co-adaptation"].value == 0
    assert (found["co-adaptation"].low, found["co-adaptation"].high) == (0, 0)


def test_a_gain_of_both_roles_together_is_co_adaptation() -> None:
    found = by_name(swap([[[1, 1], [0, 0]], [[0, 0], [0.25, 0.25]]]))
    assert found["joint gain, trained over base"].value == 0.75
    assert found["gain of row alone"].value == -0.25
    assert found["co-adaptation"].value == 1.25


def shapley_values(count: int, worth: Callable[[set[int]], float]) -> list[float]:
    """Return the Shapley values of sides 1 to `count`, from the worth of each trained set."""
    cells = {
        cell: np.array(float(worth({n + 1 for n, who in enumerate(cell) if who == 0})))
        for cell in product((0, 1), repeat=count)
    }
    return [float(value) for value in shapley(cells, count)]


@pytest.mark.parametrize(
    ("worth", "expected"),
    [
        (
            lambda s: 3 in s and bool(s & {1, 2}),
            [1 / 6, 1 / 6, 2 / 3],
        ),  # a left glove and its pairs
        (lambda s: s == {1, 2, 3}, [1 / 3, 1 / 3, 1 / 3]),
        (lambda s: bool(s), [1 / 3, 1 / 3, 1 / 3]),
        (lambda s: len(s) >= 2, [1 / 3, 1 / 3, 1 / 3]),
        (lambda s: sum(s) + 2 * (s >= {1, 2}), [2, 3, 3]),
        (lambda s: float(2 in s), [0, 1, 0]),
    ],
)
def test_shapley_values_of_three(worth: Callable[[set[int]], float], expected: list[float]) -> None:
    found = shapley_values(3, worth)
    assert found == pytest.approx(expected)
    assert sum(found) == pytest.approx(worth({1, 2, 3}) - worth(set()))


def test_shapley_values_are_the_mean_over_all_orders_and_linear() -> None:
    draw = np.random.default_rng(0).standard_normal
    one, other = ({cell: draw(5) for cell in product((0, 1), repeat=4)} for _ in range(2))
    by_order = np.zeros((4, 5))
    for order in permutations(range(4)):
        trained = [1, 1, 1, 1]
        for side in order:
            before = one[tuple(trained)]
            trained[side] = 0
            by_order[side] += (one[tuple(trained)] - before) / 24
    np.testing.assert_allclose(shapley(one, 4), by_order)
    both = shapley({cell: one[cell] + 2 * other[cell] for cell in one}, 4)
    np.testing.assert_allclose(both, by_order + 2 * np.array(shapley(other, 4)))


def test_shapley_values_sum_to_the_gain_and_split_co_adaptation() -> None:
    found = by_name(swap([[[5, 5], [3, 3]], [[2, 2], [1, 1]]]))
    row, column = (found[f"part of {s} in the joint gain (Shapley value)"] for s in ROLES)
    assert (row.value, column.value) == (2.5, 1.5)
    assert row.value + column.value == found["joint gain, trained over base"].value == 4
    half = found["co-adaptation"].value / 2
    assert row.value == found["gain of row alone"].value + half
    assert column.value == found["gain of column alone"].value + half


class Gaps(Arena):
    """Both move once. `score(task number, row, column)` is the metric; None: the game lacks it."""

    name = "gaps_v0"
    roles = dict.fromkeys(ROLES, 1)

    def __init__(self, score: Callable[[int, str, str], float | None]) -> None:
        super().__init__()
        self.score = score

    def setup(self, task: Task, rng: Random) -> None:
        self.number = task.payload["number"]

    def acting(self) -> Sequence[str]:
        return ["row_0", "column_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text="?")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        score = self.score(self.number, str(actions["row_0"]), str(actions["column_0"]))
        self.pay("row_0", 10.0 * self.number)
        if score is not None:
            self.measure(score=score)
        self.finish()


def gaps(score: Callable[[int, str, str], float | None]) -> Result:
    """Return the study of twelve tasks with one game each."""
    tasks = [Task(id=str(number), payload={"number": number}) for number in range(12)]

    def arena() -> Arena:
        return Gaps(score)

    scripts = {"trained": constant("new"), "base": constant("old")}
    made = games(arena, scripts, tasks=tasks, episodes=12, metrics=["score"])
    return study(made, [player("trained", arena), player("base", arena)])


def worth(number: int, row: str, column: str) -> float:
    """Return a score whose effects differ by task, so that sets of tasks have different means."""
    gain = (row == "new") * number + (column == "new") * number**2
    return gain + (row == column) * (7 - number)


def spotty(number: int, row: str, column: str) -> float | None:
    """Fail in one game of task 1; return None in one game of tasks 4 and 9, and always in 6."""
    if (number, row, column) == (1, "new", "new"):
        raise RuntimeError("broken hinge")
    if number == 6 or (number, row, column) in [(4, "old", "new"), (9, "old", "old")]:
        return None
    return worth(number, row, column)


def test_all_values_are_of_games_that_every_assignment_measures() -> None:
    result = gaps(spotty)
    kept = [number for number in range(12) if number not in (1, 4, 6, 9)]
    moves = {"trained": "new", "base": "old"}
    cells = {
        (one, other): sum(worth(number, moves[one], moves[other]) for number in kept) / 8
        for one, other in product(moves, repeat=2)
    }
    assert {tuple(row[:2]): row[2] for row in result.tables[0].rows} == cells
    paid = {row[result.tables[0].columns.index("return/row")] for row in result.tables[0].rows}
    assert paid == {10 * sum(kept) / 8}
    found = {name: each.value for name, each in by_name(result).items()}
    base, joint = cells["base", "base"], found["joint gain, trained over base"]
    alone = [found[f"gain of {role} alone"] for role in ROLES]
    parts = [found[f"part of {role} in the joint gain (Shapley value)"] for role in ROLES]
    assert joint == cells["trained", "trained"] - base
    assert alone == [cells["trained", "base"] - base, cells["base", "trained"] - base]
    assert found["co-adaptation"] == joint - sum(alone) and sum(parts) == joint
    assert found["lost with base as row"] == cells["trained", "trained"] - cells["base", "trained"]
    note = "8 of 12 games measure the metric in every assignment; the others are left out"
    assert result.notes == [note]
    assert "unbiased" not in str([each.to_json() for each in result.estimates])


def test_games_that_all_measure_the_metric_need_no_note() -> None:
    result = gaps(worth)
    assert not result.notes and {each.direction for each in result.estimates} == {"unbiased"}


def test_a_metric_that_no_game_has_in_every_assignment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^roleswap: no game measures score in every assignment"):
        gaps(lambda number, row, column: None if row == column else 1.0)


def test_a_zero_sum_game_has_a_role_effect_and_skill_without_it() -> None:
    """The payoffs are J[i, j] = s_i - s_j + 0.3 with skills 1 and 0."""
    pay = [[[0.3, -0.3], [1.3, -1.3]], [[-0.7, 0.7], [0.3, -0.3]]]
    result = swap(pay, metrics=["return/row"])
    assert by_name(result)["role effect, pay of the first side"].value == pytest.approx(0.3)
    (skill,) = [table for table in result.tables if table.title.startswith("Skill")]
    assert [row[1:] for row in skill.rows] == [pytest.approx([0, 1]), pytest.approx([-1, 0])]


def test_the_role_effect_is_of_games_between_different_players() -> None:
    """The players as row are paid 1 and -0.5 against themselves, and 0.5 and 0.1 otherwise."""
    pay = [[[1.0, -1.0], [0.5, -0.5]], [[0.1, -0.1], [-0.5, 0.5]]]
    result = swap(pay, metrics=["return/row"])
    assert by_name(result)["role effect, pay of the first side"].value == pytest.approx(0.3)


def test_the_table_has_every_assignment_and_the_pay_of_each_side() -> None:
    table = swap([[[5, 1], [3, 0]], [[2, 0], [0, 0]]]).tables[0]
    rows = {tuple(row[:2]): row[2:] for row in table.rows}
    assert list(table.columns) == [
        "row",
        "column",
        "return",
        "low",
        "high",
        "return/row",
        "return/column",
    ]
    assert rows["trained", "trained"] == [3, 3, 3, 5, 1]
    assert rows["trained", "base"] == [1.5, 1.5, 1.5, 3, 0]


def test_agents_of_one_role_are_sides() -> None:
    def arena():  # type: ignore[no-untyped-def]
        return raw_env()

    made = games(arena, {"c": constant("cooperate"), "d": constant("defect")})
    result = study(made, [player("c", arena), player("d", arena)])
    rows = {tuple(row[:2]): row[5:] for row in result.tables[0].rows}
    assert rows["c", "d"] == [0, 5] and rows["d", "c"] == [5, 0]
    assert not [name for name in by_name(result) if name.startswith("role effect")]


class Judged(Gaps):
    """The third role moves too, and its move is part of the score."""

    name = "judged_v0"
    roles = dict.fromkeys((*ROLES, "judge"), 1)

    def acting(self) -> Sequence[str]:
        return ["row_0", "column_0", "judge_0"]

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        row, column, judge = (str(actions[f"{role}_0"]) for role in (*ROLES, "judge"))
        self.pay("row_0", float(row == "new"))
        self.measure(score=2.0 * (row == "new") + (column == "new") + 10.0 * (judge == "strict"))
        self.finish()


@pytest.mark.parametrize("other", ["strict", "kind"])
def test_a_role_that_the_same_opponent_plays_is_not_a_side(other: str) -> None:
    def arena() -> Arena:
        return Judged(lambda number, row, column: None)

    moves = {"trained": "new", "base": "old", "one": "strict", "two": other}
    scripts = {name: constant(move) for name, move in moves.items()}
    tasks = [Task(id="0", payload={"number": 0})]
    made = games(arena, scripts, tasks=tasks, metrics=["score"])
    players = [
        StudyPlayer(
            label=label,
            policies={**dict.fromkeys(ROLES, label), "judge": judge},
            fixed={"judge": moves[judge]},
        )
        for label, judge in (("trained", "one"), ("base", "two"))
    ]
    result = study(made, players)
    found = {name: each.value for name, each in by_name(result).items()}
    if other == "strict":  # no gain, no column and no assignment of the judge
        assert result.tables[0].columns[:3] == ["row", "column", "score"] and made.cells == 4
        assert found["joint gain, trained over base"] == 3 and "gain of judge alone" not in found
        assert {tuple(row[:2]): row[2] for row in result.tables[0].rows}["base", "base"] == 10
        assert result.notes == ["the same opponent plays judge for all players, so it has no gain"]
    else:
        assert made.cells == 8 and found["gain of judge alone"] == 10 and not result.notes


def test_single_players_and_unknown_agents_are_refused() -> None:
    def arena():  # type: ignore[no-untyped-def]
        return raw_env()

    made = games(arena, {"c": constant("cooperate")})
    with pytest.raises(ConfigError, match="no other to swap with"):
        study(made, [player("c", arena)])
    with pytest.raises(ConfigError, match="no such agent; did you mean 'player_"):
        made.scores([], "return/player_7")


def test_rounding_noise_of_gains_is_0() -> None:
    """0.3 - 0.2 - 0.1 is -2.8e-17, and means of thirds are not exactly 0 either."""
    tenths = by_name(swap([[[0.3, 0.3], [0.2, 0.2]], [[0.1, 0.1], [0.0, 0.0]]]))
    assert tenths["co-adaptation"].value == 0 == tenths["co-adaptation"].low
    assert "the interval has no width" in tenths["co-adaptation"].notes
    assert tenths["gain of row alone"].value == pytest.approx(0.2)

    def paid(number: int, row: str, column: str) -> float:
        trained = (row == "new") * (0.1, 0.7, -0.8)[number % 3]
        return trained / 3 + (column == "new") * 0.1

    found = by_name(gaps(paid))
    part = found["part of row in the joint gain (Shapley value)"]
    assert part.value == 0 and part.low < -0.01 < 0.01 < part.high


def test_small_gains_are_not_rounding_noise() -> None:
    found = by_name(swap([[[1e-9, 1e-9], [0, 0]], [[0, 0], [0, 0]]]))
    assert found["joint gain, trained over base"].value == pytest.approx(1e-9)
