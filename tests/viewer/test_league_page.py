"""The page of the league: how many games a rate counts, from which seats, and how old they are."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.errors import RunError
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.run_pages import StandingsCell, standings
from selfplay.viewer.server import application

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


def test_one_group_in_one_seat_long_ago_has_no_colour_and_says_so(tmp_path: Path) -> None:
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


def test_a_league_of_an_older_version_shows_what_it_knows(tmp_path: Path) -> None:
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
def test_a_damaged_league_is_one_line(tmp_path: Path, broken: dict[str, Any]) -> None:
    run = league(tmp_path / "run", {**state(), **broken})
    with pytest.raises(RunError, match="the league of run is damaged") as raised:
        standings(run)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", "", '{"league": []}', "9" * 5000])
def test_a_state_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    run = league(tmp_path / "run", state())
    (run / "checkpoints/000050/state.json").write_text(text)
    with pytest.raises(RunError) as raised:
        standings(run)
    assert "\n" not in str(raised.value)


def test_a_rating_that_is_not_finite_stands_last(tmp_path: Path) -> None:
    ratings = {"ratings": {"a": float("nan"), "b": 3.0, "c": [float("inf")]}}
    run = league(tmp_path / "run", {**state(), "ratings": ratings})
    assert standings(run)[0].name == "b"
