"""Tests of the viewer in a real browser: hostile text stays text, open pages follow the run."""

import fcntl
import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import episode, five_episodes, served, write

pytestmark = pytest.mark.skipif(not shutil.which("chromium"), reason="needs the browser chromium")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return five_episodes(tmp_path / "made")


def seen(address: str, profile: Path, *, milliseconds: int) -> str:
    """Return the document that a real browser shows after the given virtual time."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    more = [f"--user-data-dir={profile}", f"--virtual-time-budget={milliseconds}", "--dump-dom"]
    command = ["chromium", *flags, *more, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


def test_a_real_browser_runs_nothing_that_a_model_wrote(made: Path, tmp_path: Path) -> None:
    write(made, 4, [episode(HOSTILE, 0.0)])
    with served(made) as address:
        for colour in ("", "?colour=likelihood"):
            page = f"{address}run/made/episodes/4/1{colour}"
            page_text = seen(page, tmp_path / "profile", milliseconds=2000)
            assert "<title>Episode 1 of step 4" in page_text and "onerror" in page_text  # as text
            assert "<img" not in page_text and "<title>owned" not in page_text


def left_open(served: Any, made: Path) -> str:
    """Return the page of a run that looks trained, after 30 s of the browser's virtual time."""
    server = uvicorn.Server(uvicorn.Config(served, log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener, (made / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/run/made"
            return seen(address, made.parent / "profile", milliseconds=30_000)
        finally:
            server.should_exit = True
            thread.join(120)


def test_a_page_that_is_left_open_shows_the_next_step(made: Path, tmp_path: Path) -> None:
    metrics = made / "metrics.jsonl"
    metrics.write_text('{"step": 1, "role/solver/reward": 0.5}\n')
    inner = application(RunCatalogue([made]), cache=tmp_path / "cache")
    asked: list[str] = []

    async def growing(scope: Any, receive: Any, send: Any) -> None:
        """Serve the application, and add a step to the run once its page was shown."""
        await inner(scope, receive, send)
        asked.append(scope["path"])
        if asked.count("/run/made") == 1 and metrics.stat().st_size < 60:
            with metrics.open("a") as file:
                file.write('{"step": 2, "role/solver/reward": 0.75}\n')

    page = left_open(growing, made)
    assert "2 steps" in page and "1 steps" not in page
    assert asked.count("/run/made") > 1


def test_a_page_shows_that_another_server_has_taken_its_port(made: Path, tmp_path: Path) -> None:
    """Another server with another token takes over the port."""
    inner = application(RunCatalogue([made]), cache=tmp_path / "cache")
    stranger = application(RunCatalogue([made]), cache=tmp_path / "cache", token="another")
    pages: list[str] = []

    async def changing(scope: Any, receive: Any, send: Any) -> None:
        pages.extend(["page"] * (scope["path"] == "/run/made"))
        await (inner if len(pages) < 2 else stranger)(scope, receive, send)

    page = left_open(changing, made)
    assert len(pages) > 1 and re.search('<body class="lost"', page)
