"""Recorded metrics: an outcome is 0 at the steps at which it could have occurred."""

import json
from pathlib import Path
from typing import Any

from selfplay.study.recorded_metrics import outcomes_of, recorded_metrics

RAISED, VALID = "role/injector/verdict/raised", "role/injector/valid"


def folder(place: Path, rows: list[dict[str, Any]]) -> Path:
    place.mkdir(parents=True)
    text = "".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows))
    (place / "metrics.jsonl").write_text(text)
    return place


def test_an_outcome_is_0_at_earlier_steps_at_which_its_role_moved(tmp_path: Path) -> None:
    run = folder(tmp_path / "a", [{}, {VALID: 1.0}, {VALID: 0.5, RAISED: 0.25}, {VALID: 1.0}])
    rows = recorded_metrics(run)
    assert [row.get(RAISED) for row in rows.values()] == [None, 0.0, 0.25, 0.0]
    assert list(rows[2]) == [VALID, RAISED]


def test_an_outcome_of_no_role_is_0_where_games_were_played(tmp_path: Path) -> None:
    kind, count = "episodes/failed/KeyError", "episodes/count"
    rows = [{"seconds/total": 1.0}, {count: 4.0}, {count: 4.0, kind: 1.0, "arena/score": 0.5}]
    found = recorded_metrics(folder(tmp_path / "a", rows))
    assert [row.get(kind) for row in found.values()] == [None, 0.0, 1.0]
    assert [row.get("arena/score") for row in found.values()] == [None, None, 0.5]


def test_outcomes_of_other_runs_are_0_where_their_role_moved(tmp_path: Path) -> None:
    one = folder(
        tmp_path / "a",
        [{VALID: 1.0, RAISED: 0.5, "service/judge/timeout": 1.0, "arena/score": 0.5}],
    )
    other = folder(tmp_path / "b", [{VALID: 1.0}, {"role/solver/valid": 1.0}])
    outcomes = outcomes_of([one, other])
    assert outcomes == [RAISED]
    rows = recorded_metrics(other, outcomes=outcomes)
    assert rows == {0: {VALID: 1.0, RAISED: 0.0}, 1: {"role/solver/valid": 1.0}}
