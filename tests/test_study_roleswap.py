"""Who learned what: swap tables whose entries are worked out by hand."""

import pytest
from study_games import games, player

from arenas.matrix import raw_env
from selfplay.engines.scripted import constant
from selfplay.errors import ConfigError
from selfplay.study.intervals import Estimate
from selfplay.study.result import Result
from selfplay.study.roleswap import study


def by_name(result: Result) -> dict[str, Estimate]:
    return {each.name: each for each in result.estimates}


def swap(payoffs: list[list[list[float]]], **settings: object) -> Result:
    """Trained plays the first action, untrained the second."""

    def arena():  # type: ignore[no-untyped-def]
        return raw_env(actions=["new", "old"], payoffs=payoffs, players=["row", "column"])

    made = games(arena, {"trained": constant("new"), "base": constant("old")}, **settings)
    return study(made, [player("trained", arena), player("base", arena)])


def test_what_adds_up_has_no_co_adaptation() -> None:
    found = by_name(swap([[[5, 5], [3, 3]], [[2, 2], [0, 0]]]))
    assert found["joint gain, trained over base"].value == 5
    assert found["gain of row alone"].value == 3 and found["gain of column alone"].value == 2
    assert found["lost with base as row"].value == 3
    assert found["co-adaptation"].value == 0
    assert (found["co-adaptation"].low, found["co-adaptation"].high) == (0, 0)


def test_what_only_works_together_is_co_adaptation() -> None:
    found = by_name(swap([[[1, 1], [0, 0]], [[0, 0], [0.25, 0.25]]]))
    assert found["joint gain, trained over base"].value == 0.75
    assert found["gain of row alone"].value == -0.25
    assert found["co-adaptation"].value == 1.25


def test_a_zero_sum_game_has_a_role_effect_and_skill_without_it() -> None:
    """J[i, j] = s_i - s_j + 0.3 with skills 1 and 0."""
    pay = [[[0.3, -0.3], [1.3, -1.3]], [[-0.7, 0.7], [0.3, -0.3]]]
    result = swap(pay, metrics=["return/row"])
    assert by_name(result)["role effect, pay of the first side"].value == pytest.approx(0.3)
    (skill,) = [table for table in result.tables if table.title.startswith("Skill")]
    assert [row[1:] for row in skill.rows] == [pytest.approx([0, 1]), pytest.approx([-1, 0])]


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


def test_what_cannot_be_swapped_is_one_line() -> None:
    def arena():  # type: ignore[no-untyped-def]
        return raw_env()

    made = games(arena, {"c": constant("cooperate")})
    with pytest.raises(ConfigError, match="nobody to swap with"):
        study(made, [player("c", arena)])
    with pytest.raises(ConfigError, match="no such agent; did you mean 'player_"):
        made.scores([], "return/player_7")
