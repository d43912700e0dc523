"""Tests of the viewer: pages of runs, damaged and hostile runs, and refused requests."""

import fcntl
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from selfplay.errors import ConfigError, RunError
from selfplay.models.tiny import build_tokenizer
from selfplay.types import Status, Task
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.episode_filter import PAGE
from selfplay.viewer.requests import SHARE, SOONEST, PollLimiter
from selfplay.viewer.server import application
from selfplay.viewer.task_pages import tasks_of
from selfplay.viewer.web import listen
from tests.helpers.recorded_run import HOSTILE, make_run
from tests.helpers.viewer_run import episode, five_episodes, served, write

LOCAL = "http://127.0.0.1"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "zero")
    make_run(folder / "one")
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return five_episodes(tmp_path / "made")


@pytest.fixture
def client(runs: Path, tmp_path: Path) -> Iterator[TestClient]:
    catalogue = RunCatalogue([runs])
    with TestClient(application(catalogue, cache=tmp_path), base_url=LOCAL) as made:
        yield made


def shown(client: TestClient, address: str, code: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == code, answer.text
    return answer.text


def test_pages_of_a_list_are_cut_and_linked(made: Path, tmp_path: Path) -> None:
    write(made, 3, [episode(f"text{n}", n) for n in range(2 * PAGE)])
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        first, last = (shown(client, f"/run/made/episodes?page={n}") for n in (0, 2))
    assert first.count("/run/made/episodes/3/") == PAGE and 'href="?page=2"' in first
    assert last.count("/run/made/episodes/") == 5
    assert "105 episodes" in first and "105 episodes" in last


def test_every_run_has_a_line_and_pages(client: TestClient) -> None:
    page = shown(client, "/")
    assert 'href="/run/zero"' in page and 'href="/run/one"' in page
    sections = re.findall(r'href="\?section=([^"]+)"', shown(client, "/run/zero"))
    assert len(sections) > 3
    for section in sections:
        assert "<svg" in shown(client, f"/run/zero?section={section}")
    assert "<svg" in shown(client, "/compare?run=zero&run=one&section=role")
    assert "choose from 2" in shown(client, "/compare?run=zero", 404)
    assert "no run &#39;none&#39; here" in shown(client, "/run/none", 404)


def test_an_episode_its_tokens_and_its_group_are_shown(made: Path, tmp_path: Path) -> None:
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        words = shown(client, "/run/made/episodes/1/1")
        assert "alpha beta" in words and "advantage <b>0.500</b>" in words
        tokens = shown(client, "/run/made/episodes/1/1?colour=advantage")
        assert tokens.count('class="gain-2"') == 2  # two tokens, each with the largest advantage
        likely = shown(client, "/run/made/episodes/1/1?colour=likelihood")
        assert likely.count('class="likely-2"') == 2  # log-probability -0.5
        group = shown(client, "/run/made/groups/1/1.0.0")
        assert "1 (0.500)" in group and "Member 0" in group
        assert "no group" in shown(client, "/run/made/groups/1/9", 404)
        assert "no checkpoint" in shown(client, "/run/made/tasks", 404)


def test_the_league_and_the_tasks_of_the_newest_checkpoint_are_shown(
    made: Path, tmp_path: Path
) -> None:
    task = {"id": "def f", "type": "deduction", "payload": {"code": "return 7"}}
    entries = [
        {"number": 0, "task": task, "step": -1, "author": "seed", "parents": []},
        {"number": 2, "task": task, "step": -3, "author": "base@0", "parents": [0]},
        {"number": 1, "task": task, "step": 3, "author": "base", "parents": [0, 99]},
    ]
    tried = [{**entry, "attempts": 4, "solved": 3} for entry in entries]
    state = {
        "curriculum": {"buffer": {"entries": {"deduction": tried}}},
        "step": 4,
        "league": {
            "seats": ["p_0", "p_1"],
            "played": [["base", "random", "p_0", 5, 1], ["base", "random", "p_1", 4, 3]],
            "ratings": {"ratings": {"base": [27.0, 1.0], "random": [20.0, 1.0]}},
            "payoff": {"counts": [["base", "random", 6, 2, 0], ["random", "base", 0, 2, 6]]},
        },
    }
    (made / "checkpoints/000004").mkdir(parents=True)
    (made / "checkpoints/000004/state.json").write_text(json.dumps(state))
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        league = shown(client, "/run/made/league")
        rates = re.findall(r'<td class="(\S+)">(\d+)\n', league)
        assert rates == [("beats-3", "88"), ("beaten-3", "12")]
        assert league.count("9 games,<br>every seat,<br>1 step ago") == 2
        tasks = shown(client, "/run/made/tasks?task=1")
        assert "3 of 4" in tasks and "return 7" in tasks and "3 tasks in the newest" in tasks
        (curve,) = tasks_of(made)[""].charts[0].series
        assert curve.steps == (0, 3)
        lineage = tasks.partition("All tasks")[0]
        assert "task=0" in lineage and "seed" in lineage
        (made / "checkpoints/000004/state.json").write_text('{"curriculum": {}}')
        assert "without a league" in shown(client, "/run/made/league", 404)
        assert "stores no tasks of its own" in shown(client, "/run/made/tasks", 404)


def test_hostile_words_are_shown_and_never_run(made: Path, tmp_path: Path) -> None:
    huge = replace(episode("a" * 1_000_000, 0.0), task=Task(id=HOSTILE, type=HOSTILE))
    write(made, 4, [huge, episode(HOSTILE, 0.0)], group=HOSTILE)
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        pages = [
            shown(client, "/run/made/episodes"),
            shown(client, "/run/made/episodes/4/1"),
            shown(client, "/run/made/episodes/4/2"),
            shown(client, "/run/made/episodes/4/2?colour=likelihood"),
            shown(client, f"/run/made/episodes?text={HOSTILE[:30]}"),
            shown(client, "/run/%3Cscript%3E", 404),
        ]
    for page in pages:
        assert len(re.findall(r"<script\b", page)) == 1 and "<img" not in page
        assert "\u202e" not in page and "\x1b" not in page
        assert len(page) < 400_000
    assert "992,000 more characters" in pages[1]


def test_failed_episodes_are_counted_and_listed_with_their_errors(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made / "failed"
    metrics = {"step": 2, "episodes/failed": 3, "evaluation/held_out/failed_episodes": 1}
    (made / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        page = shown(client, "/run/made")
        assert "3 episodes failed" in page and "1 episode of evaluations failed" in page
        assert 'href="/run/made/failed"' not in page  # no failed episode is recorded
        assert "No failed episode is on record." in shown(client, "/run/made/failed")

        broken = [episode("x", 0.0, status=Status.FAILED, error=e) for e in ("Odd: <b>", "Odd: 2")]
        write(made, 2, broken)
        (made / "episodes/000002.jsonl").rename(made / "moved")
        folder.mkdir()
        (made / "moved").rename(folder / "000002.jsonl")
        (folder / "000001.jsonl").write_text("no record\n")
        (folder / "000003.txt").write_text("not read\n")
        assert 'href="/run/made/failed"' in shown(client, "/run/made")
        page = shown(client, "/run/made/failed")
        assert page.index("Odd: &lt;b&gt;") < page.index("Odd: 2") < page.index("unreadable: ")
        assert "failed/000002.jsonl, line 2" in page and "2.0.1" in page
        assert "All failed episodes" in page and "not read" not in page

        monkeypatch.setattr("selfplay.viewer.failed_pages.MOST", 1)
        page = shown(client, "/run/made/failed")
        assert "The newest 1 failed episodes" in page and "Odd: 2" not in page

        (folder / "000004.jsonl").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text("secret\n")
        assert "leads out of" in shown(client, "/run/made/failed", 404)
        os.remove(folder / "000004.jsonl")
        os.mkfifo(folder / "000004.jsonl")
        assert "a pipe" in shown(client, "/run/made/failed", 404)


def test_a_page_may_load_only_files_of_the_viewer(client: TestClient) -> None:
    answer = client.get("/")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', answer.text)
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert re.findall(r"[^\n]*lost-line {[^}]*", answer.text) == [
        ".lost-line { display: none; color: var(--bad); ",
        ".lost .lost-line { display: block; ",
    ]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert client.get("/viewer.js").headers["Content-Type"].startswith("text/javascript")


def test_a_request_with_another_host_name_is_refused(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_a_server_with_a_token_shows_nothing_without_it(runs: Path, tmp_path: Path) -> None:
    made = application(RunCatalogue([runs]), cache=tmp_path, token="secret")
    with TestClient(made, base_url="http://10.0.0.7") as client:
        for address in ("/", "/run/zero", "/viewer.js", "/?token=wrong"):
            assert client.get(address).status_code == 403, address
        entered = client.get("/?token=secret")
        assert entered.status_code == 200 and "token" not in str(entered.url)
        assert client.get("/run/zero").status_code == 200
        given = client.get("/compare?run=zero&token=secret&run=one", follow_redirects=False)
        assert given.headers["Location"] == "/compare?run=zero&run=one"


def test_a_page_is_made_again_only_if_it_has_changed(made: Path, tmp_path: Path) -> None:
    (made / "metrics.jsonl").write_text('{"step": 1, "role/solver/reward": 0.5}\n')
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        first = client.get("/run/made")
        tag = {"If-None-Match": first.headers["ETag"]}
        assert float(first.headers["X-Look-Again"]) >= 5
        assert client.get("/run/made", headers=tag).status_code == 304
        with (made / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "role/solver/reward": 0.75}\n')
        second = client.get("/run/made", headers=tag)
        assert second.status_code == 200 and "2 steps" in second.text


def test_open_pages_share_one_limit_of_their_cost() -> None:
    pace = PollLimiter()
    assert pace.wait(0.0, 100.0) == SOONEST
    assert pace.wait(0.1, 100.0) == pytest.approx(0.1 * SHARE)
    assert pace.wait(0.1, 100.0) == pytest.approx(0.2 * SHARE)  # a second tab
    spent, due = 0.0, [100.0] * 5
    while spent < 5.0:  # five tabs that are left open
        now = min(due)
        due.remove(now)
        due.append(now + pace.wait(0.1, now))
        spent += 0.1
    assert spent / (min(due) - 100.0) < 1.2 / SHARE
    assert pace.wait(0.0, 1e6) == SOONEST


def test_a_run_is_live_while_a_process_holds_its_lock(made: Path, tmp_path: Path) -> None:
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        assert (
            "stopped" in shown(client, "/run/made")
            and "data-live" not in client.get("/run/made").text
        )
        with (made / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "<main data-live>" in shown(client, "/run/made")
        (made / "summary.json").write_text("{}")
        assert "ended" in shown(client, "/run/made")


def test_a_damaged_record_is_reported_in_the_list(made: Path, tmp_path: Path) -> None:
    (made / "metrics.jsonl").write_text("nonsense\n")
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        assert "metrics.jsonl, line 1: not valid JSON" in shown(client, "/")
        text = shown(client, "/run/made")
        assert "left out one damaged line: metrics.jsonl, line 1: not a step with metrics" in text


def test_a_run_with_damaged_lines_keeps_its_page(made: Path, tmp_path: Path) -> None:
    rows = [f'{{"step": {n}, "role/a/reward": {n}.5, "episodes/failed": {n}}}\n' for n in (1, 2, 3)]
    (made / "metrics.jsonl").write_text("".join([rows[0], "{broken\n", rows[1], "[]\n", rows[2]]))
    (made / "summary.json").write_text('{"name": "ma')
    twin = shutil.copytree(made, tmp_path / "twin")
    catalogue = RunCatalogue([made, twin])
    with TestClient(application(catalogue, cache=tmp_path / "cache"), base_url=LOCAL) as client:
        page = shown(client, "/run/made")
        assert "left out 2 damaged lines, the first is metrics.jsonl, line 2: not a step" in page
        assert "summary.json: not valid JSON" in page
        assert "3 steps" in page and "3.5" in page and 'href="/run/made/episodes"' in page
        assert "6 episodes failed" in page, "all undamaged lines are counted"
        assert "3.5" in shown(client, "/compare?run=made&run=twin&section=role")
        assert shown(client, "/").count("left out 2 damaged lines, the first is metrics.jsonl") == 2
        (twin / "metrics.jsonl").unlink()
        (twin / "metrics.jsonl").mkdir()
        page = shown(client, "/run/twin")
        assert ">metrics.jsonl: " in page and 'href="/run/twin/episodes"' in page


def test_a_page_of_a_run_reads_its_metrics_once(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made / "metrics.jsonl").write_text('{"step": 1, "role/a/reward": 0.5}\n')
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        assert "1 step</p>" in shown(client, "/run/made")
        with monkeypatch.context() as patch:
            patch.setattr("selfplay.viewer.metric_columns.open_regular", None)
            assert "1 step</p>" in shown(client, "/run/made")
        with (made / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "role/a/reward": 0.75}\n')
        assert "2 steps</p>" in shown(client, "/run/made")


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "a": 1%s}' % ("0" * 400)),
        lambda run: (run / "metrics.jsonl").write_bytes(b"\x00\xff"),
        lambda run: (run / "episodes/1.jsonl").write_text("{}\n"),
        lambda run: (run / "episodes/000001.jsonl").write_text("[" * 100_000 + "\n"),
        lambda run: (run / ".lock").mkdir(),
        lambda run: (run.parent / "locked").mkdir(mode=0),
        lambda run: shutil.copytree(run, os.fsdecode(os.fsencode(run.parent) + b"/\xff")),
    ],
)
def test_one_odd_run_spoils_no_page_of_another(runs: Path, tmp_path: Path, damage: Any) -> None:
    made = five_episodes(tmp_path / "runs/\u65e5\u672c")
    damage(made)
    catalogue = RunCatalogue([tmp_path / "runs", runs])
    cache = tmp_path / "cache"
    with TestClient(application(catalogue, cache=cache), base_url=LOCAL) as client:
        assert "\u65e5\u672c" in shown(client, "/")
        shown(client, "/run/zero")
        for page in ("", "/episodes", "/episodes?text=%00&step=999999999", "/league"):
            assert client.get(f"/run/\u65e5\u672c{page}").status_code in (200, 404), page


@pytest.mark.parametrize(
    "address", ["episodes", "episodes.json", "groups", "groups.json", "language", "language.json"]
)
def test_an_index_that_is_damaged_while_it_is_shown_is_rebuilt(
    made: Path, tmp_path: Path, address: str
) -> None:
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        before = shown(client, f"/run/made/{address}")
        (path,) = tmp_path.glob("*.sqlite")
        with closing(sqlite3.connect(path)) as base:
            base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.seek(4096)  # the first page of the file lists the tables
            file.write(bytes(path.stat().st_size - 4096))
        assert shown(client, f"/run/made/{address}") == before
    assert [each.name for each in tmp_path.glob("*.sqlite")] == [f"{path.stem}.1.sqlite"]


def test_tokens_are_not_decoded_with_the_tokenizer_of_another_policy(
    made: Path, tmp_path: Path
) -> None:
    build_tokenizer(["def f("]).save_pretrained(made / "checkpoints/000001/policies/base")
    with TestClient(application(RunCatalogue([made]), cache=tmp_path), base_url=LOCAL) as client:
        page = shown(client, "/run/made/episodes/1/1?colour=likelihood")
    # The policy of the turn is "shared" and has no tokenizer: its ids are shown as numbers.
    assert "\u27e80\u27e9" in page and "\u27e81\u27e9" in page


def test_a_folder_that_is_created_later_is_shown(made: Path, tmp_path: Path) -> None:
    catalogue = RunCatalogue([made], later=[tmp_path / "games"])
    assert [run.name for run in catalogue.runs()] == ["made"]
    (tmp_path / "games").mkdir()
    (tmp_path / "games/first.jsonl").write_text("{}\n")
    assert {run.name: run.state for run in catalogue.runs()}["games"] == "games"


def test_a_port_in_use_and_a_missing_folder_are_clear_errors(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="choose another with --port"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="no such host; choose another with --host"):
        listen("\u00e4..", 0)
    with pytest.raises(RunError, match="is not a folder"):
        RunCatalogue([tmp_path / "nothing"])
    with pytest.raises(RunError, match="is not a run folder and contains none"):
        RunCatalogue([tmp_path])


def test_the_command_serves_and_loads_no_torch(made: Path) -> None:
    program = (
        "import sys, selfplay.viewer.server, selfplay.viewer.run_pages;"
        "assert not {'torch', 'transformers', 'pettingzoo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with served(made) as address:
        # The timeout is long, because a test machine may be busy; proxies are not used.
        assert "made" in httpx.get(address, timeout=60.0, trust_env=False).text
