"""Scores by type of task, worked out by hand, and their tables and pictures."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from selfplay.engines.scripted import constant
from selfplay.study.matches import StudyMatches
from selfplay.study.measures.task_types import ALL, TypeScore, result, scores_by_type, study
from selfplay.study.players import Reference, StudyPlayer
from selfplay.study.plots import IntervalPlot, MatrixPlot
from selfplay.types import Episode, Status, Task
from tests.helpers.builders import episode
from tests.helpers.scripted_games import games, levers, player

KINDS = ("gcd", "lcm")


def _episodes(solved: dict[str, list[float]]) -> list[Episode]:
    return [
        episode(task=Task(id=f"{kind}-{n}", type=kind), metrics={"solve_rate": value})
        for kind, values in solved.items()
        for n, value in enumerate(values)
    ]


def _games() -> StudyMatches:
    return StudyMatches(arena=lambda: None, agent_specs={}, metrics=["solve_rate"])  # type: ignore[arg-type,return-value]


BEFORE = {"gcd": [0.0] * 12, "lcm": [1.0] * 6 + [0.0] * 6}
AFTER = {"gcd": [1.0] * 9 + [0.0] * 3, "lcm": [1.0] * 3 + [0.0] * 9}


def _scores() -> dict[str, TypeScore]:
    return scores_by_type(_games(), _episodes(BEFORE), _episodes(AFTER), who="run@4")


def test_scores_and_gains_are_those_of_each_type() -> None:
    found = _scores()
    assert list(found) == [ALL, *KINDS]
    values = {
        kind: (each.before.value, each.after.value, each.gain.value)
        for kind, each in found.items()
        if each.after and each.gain
    }
    assert values["gcd"] == pytest.approx((0.0, 0.75, 0.75))
    assert values["lcm"] == pytest.approx((0.5, 0.25, -0.25))
    assert values[ALL] == pytest.approx((0.25, 0.5, 0.25))


def test_intervals_are_about_the_tasks_of_the_type() -> None:
    found = _scores()
    # Clopper and Pearson for 0 of 12: the upper end is 1 - 0.025^(1/12).
    assert found["gcd"].before.low == 0.0
    assert found["gcd"].before.high == pytest.approx(1 - 0.025 ** (1 / 12))
    gain = found["gcd"].gain
    assert gain is not None and 0.2 < gain.low < 0.75 < gain.high <= 1.1 and gain.count == 12
    worse = found["lcm"].gain
    assert worse is not None and worse.low < -0.25 < worse.high


def test_a_task_that_is_played_several_times_is_one_task() -> None:
    before = _episodes({"gcd": [1.0], "lcm": [1.0, 0.0]}) * 3
    found = scores_by_type(_games(), before, before, who="x")
    assert [found[kind].tasks for kind in (ALL, *KINDS)] == [3, 1, 2]
    made = result({"x": found}, metric="solve_rate", params={})
    assert [row["tasks"] for row in made.tables[0].to_json()["rows"]] == [3, 1, 2]


def test_a_failed_episode_is_left_out() -> None:
    before = _episodes({"gcd": [1.0, 0.0]})
    failed = episode(task=before[1].task, metrics={}, status=Status.FAILED)
    found = scores_by_type(_games(), before, [before[0], failed], who="x")["gcd"]
    assert found.after is not None and found.after.value == 1.0
    assert found.gain is not None and found.gain.value == 0.0


def test_each_player_is_compared_with_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The levers pay 0.5, 1 and 2; both players are trained to pull the last one."""
    arena = levers([0.5, 1.0, 2.0])
    pulled = {"one@start": 0, "two@start": 1, "one@9": 2, "two@9": 2}
    scripts = {name: constant(f"lever{lever}") for name, lever in pulled.items()}
    made = games(arena, scripts, tasks=[Task(id="game", type="levers")])

    def admit(references: Sequence[Reference], *, any_role: bool) -> list[StudyPlayer]:
        assert any_role
        names = [f"{each.run.name}@{'start' if each.start else 9}" for each in references]
        return [player(name, arena) for name in names]

    monkeypatch.setattr(made, "admit", admit)
    found = study(made, [Reference(run=Path(name)) for name in ("one", "two")])
    assert [(each.name, each.value) for each in found.estimates if "gain" in each.name] == [
        ("gain: all, one@9", 1.5),
        ("gain: all, two@9", 1.0),
    ]
    start = study(made, [Reference(run=Path("one"), start=True)])
    assert not [each for each in start.estimates if "gain" in each.name]


def test_several_runs_are_a_matrix() -> None:
    made = result({"a@4": _scores(), "b@4": _scores()}, metric="solve_rate", params={})
    assert [type(each) for each in made.drawings] == [IntervalPlot, IntervalPlot, MatrixPlot]
    table = made.tables[-1].to_json()["rows"]
    assert [row[""] for row in table] == ["a@4", "b@4"]
    assert table[1]["lcm"] == pytest.approx(-0.25)
    assert [each.name for each in made.estimates] == ["gain: all, run@4"] * 2
    row = made.tables[0].to_json()["rows"][1]
    assert (row["type of task"], row["tasks"], row["after"]) == ("gcd", 12, 0.75)


def test_the_start_alone_has_no_gain() -> None:
    start = scores_by_type(_games(), _episodes(BEFORE), None, who="run@start")
    made = result({"run@start": start}, metric="solve_rate", params={})
    assert made.drawings == [] and len(made.tables) == 1
    assert made.tables[0].columns == ["type of task", "tasks", "before", "low", "high"]
    both = result({"run@start": start, "a@4": _scores()}, metric="solve_rate", params={})
    assert len(both.drawings) == 1 and len(both.tables) == 2
    assert all(math.isfinite(float(row["gain"])) for row in both.tables[1].to_json()["rows"])
