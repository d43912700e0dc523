"""Tests of pages in a real browser: a game in two tabs, and the width of pages on a phone."""

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn

from selfplay.experiment.human_play import table
from selfplay.viewer.play_pages import PlayPages, PlaySession, application
from tests.helpers.browser import Browser, Tab, browser
from tests.helpers.memory_episode import played
from tests.helpers.recorded_run import HOSTILE, make_run, turn
from tests.helpers.saved_tasks import ladder, saved
from tests.helpers.viewer_run import episode, served, write

pytestmark = pytest.mark.skipif(not shutil.which("chromium"), reason="needs the browser chromium")
PHONE = 360
"""Width of a narrow phone in pixels."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@contextmanager
def seated() -> Iterator[tuple[str, Callable[[], None]]]:
    """Serve a table of tic-tac-toe; yield its address and a function that stops the server."""
    session = PlaySession(seed=0)
    with (
        table("tic_tac_toe", ask=session.ask, script="arenas.games.tic_tac_toe.minimax") as place,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        pages = PlayPages(place, session, title="A game", agent="player_1")
        made = uvicorn.Config(application(pages), log_level="warning", lifespan="off")
        server = uvicorn.Server(made)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()

        def stop() -> None:
            server.should_exit = server.force_exit = True
            thread.join(20)

        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", stop
        finally:
            stop()
            session.close()


def write_down(tab: Tab, text: str) -> None:
    tab.run(f"document.querySelector('textarea').value = {json.dumps(text)}")


def press(tab: Tab, times: int = 1) -> None:
    for _ in range(times):
        tab.run("document.querySelector('main button').click()")


def test_a_game_in_two_tabs_that_are_reloaded_and_outlive_the_server(
    shown: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with seated() as (address, stop):
        first = shown.open(address)
        assert first.run("document.querySelector('select').value") == "player_1"
        first.run("document.querySelector('select').value = 'player_0'")
        press(first, times=2)
        first.wait("document.body.innerText.includes('Your move, as player_0')")
        second = shown.open(address, width=PHONE)
        assert second.run("document.documentElement.scrollWidth") <= PHONE
        write_down(second, "9")
        write_down(first, "5")
        press(first, times=2)
        first.wait("document.querySelectorAll('details.turn').length === 2")
        # The text in the other tab stays, is refused when it is sent, and can still be read.
        assert second.run("document.querySelector('textarea').value") == "9"
        press(second)
        second.wait("document.body.innerText.includes('game has continued')")
        assert "what you wrote\n9" in second.text()
        second.go(address)
        assert "Move 2" in second.text() and "owned" not in second.run("document.title")
        first.reload()
        assert first.run("document.querySelectorAll('details.turn').length") == 2
        write_down(first, "not lost")
        stop()
        press(first)
        first.wait("document.body.classList.contains('lost')")
        assert first.run("document.querySelector('textarea').value") == "not lost"
        assert "does not answer" in first.text()


def test_wide_tables_are_not_cut_without_a_sign(shown: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", hostile=HOSTILE)
    turns = tuple(turn(f"debater_{place}", "words " * 20, -1.625) for place in range(6))
    write(run, 61, [replace(episode("", 0.0), turns=turns)])
    with served(run) as address:
        tab = shown.open(address, width=1300)
        for page in ("", "run/run/episodes"):
            tab.go(f"{address}{page}")
            assert (
                tab.run("getComputedStyle(document.querySelector('.wide')).background").count(
                    "linear-gradient"
                )
                == 4
            ), "shadows at both ends show that more is hidden"
            assert tab.run(
                "[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth)"
            ), page
        assert "debater_5 -1.62" in tab.text()


def test_long_names_cover_no_column_and_no_edge(shown: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / ("long_name_" * 15))
    write(run, 61, [episode("text", 0.0, role="very_long_role_" * 8)])
    with served(run) as address:
        tab = shown.open(address, width=1280)
        name = "document.querySelector('.runs tr.first th')"
        assert 100 < tab.run(f"{name}.offsetWidth") < 400
        assert tab.run(f"{name}.innerText") == run.name
        tab = shown.open(f"{address}run/{run.name}/episodes", width=PHONE)
        widest = "Math.max(...[...document.querySelectorAll('select')].map(s => s.offsetWidth))"
        assert 0 < tab.run(widest) <= PHONE and "very_long_role" in tab.text()


def test_no_page_is_wider_than_a_phone(shown: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / ("a-rather-long-name-" * 3), hostile=HOSTILE)
    saved(run, ladder().state_dict())
    remembered, _ = played()
    wild = [episode("a" * 100_000, 0.0), episode(HOSTILE, 1.0), remembered]
    write(run, 61, wild, group="g" * 90)
    games = run / "games"
    games.mkdir()
    line = (run / "episodes/000061.jsonl").read_text().splitlines()[1]
    (games / "20260101-000000-1.jsonl").write_text(f"{line}\n")
    (games / "20260101-000000-2.jsonl").write_text("{}\n")
    pages = (
        *("", "?section=Roles", "/episodes", "/episodes/61/1", "/episodes/61/2?colour=likelihood"),
        *("/episodes/61/3", "/groups/60/g0", "/tasks?task=easiest", "/league", "/games"),
        "/games/20260101-000000-1",
    )
    with served(run) as address:
        tab = shown.open(address, width=PHONE)
        for page in ("", *(f"run/{run.name}{page}" for page in pages)):
            tab.go(f"{address}{page}")
            assert tab.run("document.documentElement.scrollWidth") <= PHONE, page
            assert "owned" not in tab.run("document.title"), page
            assert len(tab.text()) > 20
