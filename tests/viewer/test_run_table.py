"""The table of runs: settings that differ, health, order and filter, also beside hostile runs."""

import fcntl
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.run_configs import differing
from selfplay.viewer.server import application
from tests.helpers.browser import browser
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import served

LOCAL = "http://127.0.0.1"


def make(run: Path, *, seed: int, lr: float, rows: list[dict[str, Any]], more: str = "") -> Path:
    run.mkdir(parents=True)
    config = (
        f"seed: {seed}\nlearner: {{lr: {lr}, steps: 1}}\nrun: {{name: {run.name}, steps: 10}}\n"
    )
    (run / "config.yaml").write_text(config + more)
    text = "".join(json.dumps({"step": n, **row}) + "\n" for n, row in enumerate(rows, 1))
    (run / "metrics.jsonl").write_text(text)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    good = {"role/solver/reward": 0.5, "role/solver/valid": 0.75, "seconds/total": 3.0}
    bad = {"service/executor/timeout": 2, "episodes/failed": 1, "collapse/entropy": 1}
    make(folder / "a", seed=0, lr=0.1, rows=[good, good])
    make(folder / "b", seed=1, lr=0.1, rows=[good | bad, good | bad | {"collapse/entropy": 0}])
    make(folder / "c", seed=0, lr=0.02, rows=[good] * 3, more="extra: {deep: [1, 2]}\n")
    return folder


@pytest.fixture
def client(runs: Path, tmp_path: Path) -> Iterator[TestClient]:
    made = application(RunCatalogue([runs]), cache=tmp_path / "cache")
    with TestClient(made, base_url=LOCAL) as client:
        yield client


def listed(client: TestClient, query: str = "") -> list[str]:
    answer = client.get(f"/runs.json?{query}")
    assert answer.status_code == 200, answer.text
    page = client.get(f"/?{query}")
    names = [row["name"] for row in answer.json()["runs"]]
    assert page.status_code == 200
    assert re.findall(r'<th scope="row"><a href="/run/([^"/]+)">', page.text) == names
    return names


def test_keys_that_differ_and_the_health_of_each_run(client: TestClient) -> None:
    found = client.get("/runs.json").json()
    assert found["keys"] == ["extra.deep", "learner.lr"]
    rows = {row["name"]: row for row in found["runs"]}
    assert rows["c"]["config"] == {"extra.deep": "[1, 2]", "learner.lr": "0.02"}
    assert rows["b"]["health"] == {
        "timeouts": 4,
        "failed": 2,
        "malformed": 0.25,
        "alarms": {"entropy": 1},
    }
    assert (rows["a"]["steps"], rows["a"]["total"], rows["a"]["left"]) == (2, 10, None)
    page = client.get("/").text
    assert "entropy fired at step 1" in page and "25.0 %" in page and "2 of 10" in page


def test_the_time_left_of_a_training(client: TestClient, runs: Path) -> None:
    with (runs / "a/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = {row["name"]: row for row in client.get("/runs.json").json()["runs"]}
        assert rows["a"]["left"] == 24.0  # 8 steps of 3 s
        assert listed(client, "words=training") == ["a"]


def test_order_filter_and_seeds(client: TestClient) -> None:
    assert listed(client, "sort=learner.lr&words=")[0] == "c"
    assert listed(client, "sort=run&down=1") == ["c", "b", "a"]
    assert listed(client, "sort=extra.deep&down=1")[0] == "c"  # the others lack the key
    assert listed(client, "words=lr%3D0.1+seed%3D1") == ["b"]
    assert listed(client, "words=alarm") == ["b"] and listed(client, "words=nothing") == []
    assert listed(client, "sort=none%00") == listed(client)
    listed(client, "seeds=1&sort=run")
    page = client.get("/?seeds=1&sort=run").text
    assert "2 seeds: 0, 1" in page and "run=a&amp;run=b&amp;seeds=1" in page


def test_the_differences_of_two_configs(client: TestClient) -> None:
    found = client.get("/configs.json?run=a&run=c").json()
    assert set(found["different"]) == {"learner.lr", "run.name", "extra.deep"}
    assert found["different"]["learner.lr"] == ["0.1", "0.02"]
    assert found["equal"] == {"seed": "0", "learner.steps": "1", "run.steps": "10"}
    assert "learner.lr" in client.get("/configs?run=a&run=c").text
    for query in ("run=a", "run=a&run=none"):
        assert client.get(f"/configs.json?{query}").status_code == 404
    assert differing([{"seed": "0", "a": "1"}, {"seed": "1", "a": "1", "b": "2"}]) == ["b"]


def test_static_pages_of_a_run_are_inert(client: TestClient, runs: Path) -> None:
    (runs / "a/report.html").write_text("<script>document.title='owned'</script>")
    (runs / "a/studies").mkdir()
    (runs / "a/studies/one.html").write_text("<p>one")
    (runs / "a/studies/away.html").symlink_to("/etc/hostname")
    assert "/run/a/page/studies/one.html" in client.get("/").text
    answer = client.get("/run/a/page/report.html")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'") and "script" not in policy
    assert client.get("/run/a/page/studies/one.html").text == "<p>one"
    for page in (
        "studies/away.html",
        "config.yaml",
        "studies/../config.yaml",
        "..%2Fb/report.html",
    ):
        assert client.get(f"/run/a/page/{page}").status_code == 404, page


def test_hostile_runs_spoil_no_line_of_another(client: TestClient, runs: Path) -> None:
    odd = {
        HOSTILE: 1.0,
        f"role/{HOSTILE}/reward": 1e308,
        "role/x/valid": float("nan"),
        "episodes/failed": float("inf"),
        "service/x/timeout": float("nan"),
        f"collapse/{HOSTILE}": 1,
        "seconds/total": float("-inf"),
    }
    text = json.dumps(HOSTILE.replace("\ud800", ""))
    hostile = f"{text}: {text}\n"
    make(runs / "odd", seed=0, lr=0.1, rows=[odd], more=hostile)
    make(runs / "torn", seed=0, lr=0.1, rows=[{"role/x/reward": 1.0}], more="x: [")
    make(runs / "bomb", seed=0, lr=0.1, rows=[], more="a: &a [1,1]\nb: ${oc.env:HOME}\n")
    shutil.copytree(runs / "odd", runs / "<b>odd")
    page = client.get("/").text
    assert "<img" not in page and "<svg" not in page and "<b>odd" not in page
    assert "cannot be read as the config of a run" in page and 'href="/run/a"' in page
    assert {row["name"] for row in client.get("/runs.json").json()["runs"]} >= {"a", "odd", "torn"}
    assert client.get("/configs?run=odd&run=a").status_code == 200
    assert "<img" not in client.get("/configs?run=odd&run=a").text
    assert client.get("/run/odd").status_code == 200


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs the browser chromium")
def test_the_table_fits_a_phone(runs: Path, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as shown, served(runs) as address:
        for page in ("?seeds=1", "configs?run=a&run=c"):
            tab = shown.open(f"{address}{page}", width=360)
            assert tab.run("document.documentElement.scrollWidth") <= 360, page
            assert "0.02" in tab.text()
