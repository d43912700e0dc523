"""Tests of the progress of a run on its pages, which is shown only while the run is trained."""

import fcntl
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.live_progress import LARGEST, read_progress
from selfplay.viewer.server import application
from tests.helpers.browser import browser
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import episode, five_episodes, served, write

NOW = 1_000_000.0


def write_progress(run: Path, **fields: Any) -> None:
    """Write the progress file: step 2 of 40, and 12 of 64 episodes in 4 s."""
    tally = {"unit": "episodes", "done": 12, "total": 64, "tokens": 2000, "since": NOW - 4}
    content = {"time": NOW, "phase": "rollout", "since": NOW - 4, "tallies": [tally]}
    about = {"step": 2, "steps": 40, "seconds_left": 90.0}
    made = run / ".made"  # a page never reads an incomplete file
    made.write_text(json.dumps({**content, **about, **fields}))
    made.replace(run / "progress.json")


@contextmanager
def training(run: Path) -> Iterator[None]:
    """Hold the lock of a run, as a process that trains it does."""
    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return five_episodes(tmp_path / "made")


@pytest.fixture
def client(made: Path, tmp_path: Path) -> Iterator[TestClient]:
    app = application(RunCatalogue([made]), cache=tmp_path / "cache")
    with TestClient(app, base_url="http://127.0.0.1") as opened:
        yield opened


def test_a_training_run_shows_its_phase_and_bars(made: Path, client: TestClient) -> None:
    write_progress(made)
    with training(made):
        page = client.get("/run/made").text
        for words in (
            "step 2 of 40, 1 min 30 s left",
            "rollout, for 4 s",
            "12 of 64 episodes, 500 tokens/s, 17 s left",
        ):
            assert words in page
        assert '<progress max="64" value="12"' in page
        part = client.get("/run/made/progress")
        assert "rollout" in part.text and "<html" not in part.text
        assert float(part.headers["X-Look-Again"]) >= 2
        short = client.get("/run/made/progress?short=1").text
        assert "<progress" not in short and "rollout, 12 of 64 episodes" in short
        data = client.get("/run/made/progress.json").json()
        assert data["state"] == "training" and data["progress"]["tallies"][0]["tokens"] == 2000
        assert 'data-present="/run/made/progress?short=1"' in client.get("/").text


def test_a_run_that_does_not_train_shows_nothing(made: Path, client: TestClient) -> None:
    write_progress(made)  # a killed process left the file
    page = client.get("/run/made").text
    assert "rollout" not in page and "data-present" not in page
    assert client.get("/run/made/progress").text == ""
    assert client.get("/run/made/progress.json").json() == {"run": "made", "state": "stopped"}
    assert client.get("/run/none/progress").status_code == 404


@pytest.mark.parametrize(
    "content",
    [
        "nonsense",
        "[]",
        '{"time": 1e400, "phase": "x", "since": 0, "tallies": []}',
        '{"time": 1, "phase": "x", "since": 0, "tallies": [{"unit": "u", "done": -1}]}',
        json.dumps({"time": 1, "phase": "x" * 300, "since": 0, "tallies": []}),
        json.dumps({"time": 1, "phase": "x", "since": 0, "tallies": [], "more": "x" * LARGEST}),
    ],
)
def test_a_damaged_file_shows_nothing(made: Path, client: TestClient, content: str) -> None:
    (made / "progress.json").write_text(content)
    with training(made):
        assert client.get("/run/made").status_code == 200
        assert client.get("/run/made/progress").text == ""
    (made / "progress.json").unlink()
    (made / "progress.json").symlink_to("/etc/hostname")
    assert read_progress(made) is None


def test_hostile_words_are_inert(made: Path, client: TestClient) -> None:
    write_progress(made, phase=HOSTILE[:150])
    with training(made):
        page = client.get("/run/made").text + client.get("/run/made/progress").text
    assert "<img" not in page and "\u202e" not in page and page.count("<script") == 1


def test_a_tab_is_shown_only_if_its_page_has_content(made: Path, client: TestClient) -> None:
    def tabs() -> list[str]:
        return re.findall(r'<a href="/run/made/(\w+)"', client.get("/run/made").text)

    assert tabs() == ["episodes", "groups", "language"]
    (made / "failed").mkdir()
    (made / "failed/000002.jsonl").write_text("{}\n")
    (made / "games").mkdir()
    (made / "games/1.jsonl").write_text("{}\n")
    state = {"league": {"ratings": {"a": 1}}, "curriculum": {"rungs": []}}
    (made / "checkpoints/000002").mkdir(parents=True)
    (made / "checkpoints/000002/state.json").write_text(json.dumps(state))
    assert tabs()[3:] == ["games", "tasks", "league", "failed"]
    legal = episode("x", 0.0)
    write(made, 3, [legal])
    file = made / "episodes/000003.jsonl"
    file.write_text(file.read_text().replace(" ", "").replace('"agent"', '"legal":["x"],"agent"'))
    assert "behaviour" in tabs()
    shutil.rmtree(made / "episodes")
    assert "episodes" not in tabs() and "language" not in tabs()


def test_the_tab_of_a_league_is_there_before_its_first_checkpoint(
    made: Path, client: TestClient
) -> None:
    with (made / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 9, "league/rating/base": 25.0}) + "\n")
    assert "/run/made/league" in client.get("/run/made").text
    assert "base" in client.get("/run/made/league").text
    (made / "metrics.jsonl").unlink()
    (made / "metrics.jsonl").symlink_to("/dev/zero")
    assert "/run/made/league" not in client.get("/run/made").text


def test_an_open_page_follows_the_work_on_a_phone(made: Path, tmp_path: Path) -> None:
    if not shutil.which("chromium"):
        pytest.skip("needs the browser chromium")
    write_progress(made, phase="warm start", step=0, seconds_left=None)
    with (
        training(made),
        served(made) as address,
        browser(tmp_path / "profile") as opened,
    ):
        tab = opened.open(f"{address}run/made", width=360)
        tab.wait("document.querySelector('.present').innerText.includes('warm start')")
        assert tab.run("document.documentElement.scrollWidth") <= 360
        tab.run("window.same = true")
        write_progress(made, time=time.time(), phase="learn", tallies=[])
        tab.wait("document.querySelector('.present').innerText.includes('learn, for')")
        assert (
            tab.run("window.same") and tab.run("document.querySelectorAll('progress').length") == 1
        )
