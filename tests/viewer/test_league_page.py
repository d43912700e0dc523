"""Tests of the league page: games, seats and age of each win rate, and values over the steps."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.errors import RunError
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.league_pages import MOST_STEPS, StandingsCell, history, pairs, standings
from selfplay.viewer.server import application
from tests.helpers.browser import browser
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import served

SEATS = ["player_0", "player_1"]


def league(run: Path, state: Any, step: int = 50) -> Path:
    place = run / "checkpoints" / f"{step:06d}"
    place.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text("seed: 0\n")
    (place / "state.json").write_text(json.dumps({"step": step, "league": state}))
    return run


def state(**more: Any) -> dict[str, Any]:
    return {
        "ratings": {"ratings": {"base": [25.0, 1.0], "base@8": [20.0, 1.0]}, "scale": 1},
        "payoff": {"counts": [["base", "base@8", 0, 0, 8], ["base@8", "base", 8, 0, 0]]},
        **more,
    }


def cell(run: Path) -> StandingsCell:
    found = standings(run)[0].cells[1]
    assert found is not None
    return found


def page(run: Path, cache: Path) -> str:
    app = application(RunCatalogue([run]), cache=cache)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        return client.get(f"/run/{run.name}/league").text


def test_old_games_from_one_seat_have_no_colour_and_a_note(tmp_path: Path) -> None:
    played = [["base", "base@8", "player_1", 8, 9]]
    run = league(tmp_path / "run", state(seats=SEATS, played=played))
    found = cell(run)
    assert found.rate == 0 and found.shade == ""
    assert (found.games, found.seats, found.age) == (8, ("player_1",), 41)
    text = page(run, tmp_path / "cache")
    assert "8 games,<br>only as player_1,<br>41 steps ago" in text
    assert "8 games,<br>only as player_0,<br>41 steps ago" in text  # the other player had that seat
    assert 'class="beaten-4"' not in text and 'class="beats-4"' not in text


def test_games_from_every_seat_have_a_colour(tmp_path: Path) -> None:
    played = [["base", "base@8", "player_1", 8, 9], ["base", "base@8", "player_0", 8, 50]]
    run = league(tmp_path / "run", state(seats=SEATS, played=played))
    assert (cell(run).games, cell(run).everywhere, cell(run).age) == (16, True, 0)
    assert cell(run).shade == "beaten-4"
    assert "16 games,<br>every seat,<br>at the latest step" in page(run, tmp_path / "cache")


def test_a_league_of_an_older_version_shows_the_values_that_it_has(tmp_path: Path) -> None:
    run = league(tmp_path / "run", state())
    assert (cell(run).games, cell(run).age, cell(run).shade) == (None, None, "")
    assert "about 8 games" in page(run, tmp_path / "cache")


@pytest.mark.parametrize(
    "broken",
    [
        {"ratings": {"ratings": {"base": "good"}}},
        {"ratings": {"ratings": {"base": []}}},
        {"ratings": {"ratings": {"base": None}}},
        {"ratings": {"ratings": [1]}},
        {"ratings": [1]},
        {"payoff": {"counts": [["a", "b", 1]]}},
        {"payoff": {"counts": [["a", "b", -1, 0, 0]]}},
        {"payoff": {"counts": [["a", "b", float("inf"), 0, 0]]}},
        {"played": [["a", "b", "c", 1.5, 2]]},
        {"played": 3},
        {"seats": "player"},
    ],
)
def test_a_damaged_league_gives_an_error_of_one_line(
    tmp_path: Path, broken: dict[str, Any]
) -> None:
    run = league(tmp_path / "run", {**state(), **broken})
    with pytest.raises(RunError, match="the league of run is damaged") as raised:
        standings(run)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", "", '{"league": []}', "9" * 5000])
def test_a_state_without_a_league_gives_an_error_of_one_line(tmp_path: Path, text: str) -> None:
    run = league(tmp_path / "run", state())
    (run / "checkpoints/000050/state.json").write_text(text)
    with pytest.raises(RunError) as raised:
        standings(run)
    assert "\n" not in str(raised.value)


def test_a_rating_that_is_not_finite_is_sorted_last(tmp_path: Path) -> None:
    ratings = {"ratings": {"a": float("nan"), "b": 3.0, "c": [float("inf")]}}
    run = league(tmp_path / "run", {**state(), "ratings": ratings})
    assert standings(run)[0].name == "b"


# Over the steps ---------------------------------------------------------------------------------


def recorded(run: Path, rows: list[dict[str, Any]]) -> Path:
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def over_steps(run: Path) -> Path:
    """Record a league in which base meets base@8 from step 1 and base@16 from step 2."""
    rate = "league/win_rate/base"
    return recorded(
        league(run, state()),
        [
            {"step": 0, "evaluation/games/return": 0.5},
            {"step": 1, "league/rating/base": 25.0, f"{rate}/base@8": 0.25},
            {
                "step": 2,
                "league/rating/base": 27.5,
                "league/rating/base@16": 26.0,
                f"{rate}/base@8": 0.75,
                f"{rate}/base@16": 0.5,
            },
        ],
    )


def test_ratings_and_win_rates_are_read_from_the_metrics(tmp_path: Path) -> None:
    found = history(over_steps(tmp_path / "run"))
    assert found.ratings == {"base": [(1, 25.0), (2, 27.5)], "base@16": [(2, 26.0)]}
    first, last = found.matrices
    assert (first.step, first.players, first.opponents) == (1, ["base"], ["base@8"])
    assert last.opponents == ["base@8", "base@16"] and last.rates == [[0.75, 0.5]]
    assert first.shades() == [["beaten-2"]] and last.shades() == [["beats-2", "even"]]
    chart = found.chart()
    assert chart is not None and [series.label for series in chart.series] == ["base", "base@16"]


def test_the_page_shows_any_step_and_gives_its_data(tmp_path: Path) -> None:
    run = over_steps(tmp_path / "run")
    app = application(RunCatalogue([run]), cache=tmp_path / "cache")
    with TestClient(app, base_url="http://127.0.0.1") as client:
        newest, first = client.get("/run/run/league").text, client.get("/run/run/league?at=0").text
        assert "<output>2</output>" in newest and '<td class="beats-2">75</td>' in newest
        assert "<output>1</output>" in first and '<td class="beaten-2">25</td>' in first
        assert "<svg" in newest and client.get("/run/run/league?at=99&sort=odd").status_code == 200
        data = client.get("/run/run/league.json").json()
    assert [matrix["step"] for matrix in data["matrices"]] == [1, 2]
    assert data["pairs"][0]["opponent"] in ("base", "base@8") and data["ratings"]["base"][1][0] == 2


def test_a_run_without_a_checkpoint_shows_its_curves(tmp_path: Path) -> None:
    run = over_steps(tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    text = page(run, tmp_path / "cache")
    assert "<svg" in text and "Newest checkpoint" not in text
    (run / "metrics.jsonl").unlink()
    assert "no checkpoint yet" in page(run, tmp_path / "cache")


def test_pairs_are_sorted_by_a_column(tmp_path: Path) -> None:
    played = [["base", "base@8", "player_1", 8, 9], ["base", "base@8", "player_0", 8, 50]]
    lines = standings(league(tmp_path / "run", state(seats=SEATS, played=played)))
    assert [p.rate for p in pairs(lines, sort="rate", descending=True)] == [1.0, 0.0]
    assert [p.player for p in pairs(lines, sort="player", descending=False)] == ["base", "base@8"]
    assert {p.seats for p in pairs(lines, sort="", descending=False)} == {"every seat"}


def test_a_long_run_has_few_matrices_and_hostile_names_are_inert(tmp_path: Path) -> None:
    rows = [{"step": n, f"league/win_rate/base/{HOSTILE}": 0.5} for n in range(1, 1001)]
    rows.append({"step": 1001, f"league/rating/{HOSTILE}": 1.0, "league/win_rate/a/b": 7.0})
    run = recorded(league(tmp_path / "run", state()), rows)
    steps = [matrix.step for matrix in history(run).matrices]
    assert len(steps) == MOST_STEPS and steps[0] == 1 and steps[-1] == 1001
    text = page(run, tmp_path / "cache")
    assert "<img" not in text and "\u202e" not in text and text.count("<script") == 1
    (run / "metrics.jsonl").write_text(
        '{"step": 1, "league/win_rate/a/b": 0.5}\nnonsense\n{"step": 3, "league/rating/a": 2.0}\n'
    )
    read = history(run)
    assert [m.step for m in read.matrices] == [1] and read.ratings == {"a": [(3, 2.0)]}
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(RunError):
        history(run)


def test_a_real_browser_drags_the_slider_on_a_phone(tmp_path: Path) -> None:
    if not shutil.which("chromium"):
        pytest.skip("needs the browser chromium")
    run = over_steps(tmp_path / "run")
    with served(run) as address, browser(tmp_path / "profile") as opened:
        tab = opened.open(f"{address}run/run/league", width=360)
        assert tab.run("document.documentElement.scrollWidth") <= 360
        tab.run("document.querySelector('[type=range]').focus()")
        tab.press("ArrowLeft")
        tab.wait("location.search.includes('at=0') && document.readyState === 'complete'")
        tab.wait("document.querySelector('output')?.textContent === '1'")
        assert tab.run("document.querySelector('.payoff td').textContent") == "25"
