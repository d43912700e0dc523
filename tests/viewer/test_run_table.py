"""Tests of the table of runs: settings that differ, health, order and filter, hostile runs."""

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
from selfplay.viewer.run_configs import RunConfigs, differing
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
    assert found["keys"] == ["learner.lr", "extra.deep"]
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
    assert "entropy fired at step 1" in page and "25.0%" in page and "2 of 10" in page


def test_the_time_left_of_a_training(client: TestClient, runs: Path) -> None:
    with (runs / "a/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = {row["name"]: row for row in client.get("/runs.json").json()["runs"]}
        assert rows["a"]["left"] == 24.0  # 8 steps of 3 s
        assert listed(client, "words=training") == ["a"]


def test_the_keys_are_those_that_differ_between_the_runs_of_a_filter(
    client: TestClient, runs: Path
) -> None:
    make(runs / "d", seed=2, lr=0.1, rows=[], more="extra: {wide: 1}\n")

    def keys(query: str) -> Any:
        return client.get(f"/runs.json?{query}").json()["keys"]

    assert keys("") == ["learner.lr", "extra.deep", "extra.wide"]
    assert keys("words=lr%3D0.1") == ["extra.wide"]
    assert keys("words=lr%3D0.02") == keys(""), "for a single run, the keys of all runs are shown"


def test_runs_of_other_experiments_differ_by_name_and_class(tmp_path: Path) -> None:
    """Keys inside a node are left out if its class differs; null and lists are shown as JSON."""
    for name, target, more in (
        ("one", "arenas.games.kuhn.Kuhn", "cards: [north, south], inner: {_target_: a.B}"),
        ("two", "arenas.games.tictac.TicTac", "size: 3"),
        ("three", "arenas.games.tictac.TicTac", "size: 3"),
    ):
        make(tmp_path / name, seed=0, lr=0.1, rows=[])
        file = tmp_path / name / "config.yaml"
        run = f"run: {{name: {name}, steps: 10, experiment: tiny/{name}}}\n"
        text = file.read_text().replace(f"run: {{name: {name}, steps: 10}}\n", run)
        limit = "null" if name == "three" else "[1, {a: true}]"
        arena = f"arena: {{_target_: {target}, {more}}}\nlimit: {limit}\n"
        file.write_text(text + arena + "extra: 1\n" * (name == "one"))
    made = application(RunCatalogue([tmp_path]), cache=tmp_path / "cache")
    with TestClient(made, base_url=LOCAL) as client:
        found = client.get("/runs.json").json()
        page = client.get("/").text
        asked = client.get("/runs.json?words=size%3D3").json()
    assert found["keys"] == ["run.experiment", "arena._target_", "limit", "extra"]
    rows = {row["name"]: row["config"] for row in found["runs"]}
    assert rows["three"]["limit"] == "null" and rows["two"]["limit"] == '[1, {"a": true}]'
    assert '<td data-name="run.experiment" class="setting">tiny/one</td>' in page
    assert ">arena.<wbr>_target_</a>" in page and ">arenas.<wbr>games.<wbr>kuhn.<wbr>Kuhn<" in page
    assert {row["name"] for row in asked["runs"]} == {"two", "three"}, "a filter can use every key"


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
    assert "learner.<wbr>lr</th>" in client.get("/configs?run=a&run=c").text
    for query in ("run=a", "run=a&run=none"):
        assert client.get(f"/configs.json?{query}").status_code == 404
    assert differing([{"seed": "0", "a": "1"}, {"seed": "1", "a": "1", "b": "2"}]) == ["b"]


def test_seeds_that_follow_the_seed_of_the_run_separate_no_runs(
    client: TestClient, runs: Path
) -> None:
    """A run's config has the resolved `${seed}`, and `run.threads` changes no result."""
    for number in range(3):
        more = f"warmstart: {{seed: {number}, tasks: {{seed: 0}}}}\n"
        run = make(runs / f"s{number}", seed=number, lr=0.5, rows=[], more=more)
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("steps: 10", f"steps: 10, threads: {number}"))
    found = client.get("/runs.json?seeds=1&words=lr%3D0.5").json()
    assert [row["group"] for row in found["runs"]] == [0, 0, 0]
    assert differing([RunConfigs().read(runs / f"s{number}") for number in range(3)]) == []
    configs = [{"seed": "0", "a.seed": "0"}, {"seed": "1", "a.seed": "0"}]
    assert differing([*configs, {"seed": "2", "a.seed": "2"}]) == ["a.seed"]
    assert differing(configs) == []


def test_long_values_that_differ_after_the_cut_are_not_equal(
    client: TestClient, runs: Path
) -> None:
    for number, end in enumerate(("Think first.", "Answer at once.")):
        more = f"template: {'You are a helpful player. ' * 20}{end}\n"
        make(runs / f"t{number}", seed=number, lr=0.5, rows=[], more=more)
    configs = RunConfigs()
    assert configs.group(runs / "t0") != configs.group(runs / "t1")
    different = client.get("/configs.json?run=t0&run=t1").json()["different"]
    assert set(different) == {"seed", "run.name", "template"}
    assert all(len(each) < 300 for each in different["template"])


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


def test_tags_are_shown_found_and_changed_by_the_form_of_the_page_alone(
    client: TestClient, runs: Path
) -> None:
    (runs / "a/tags.json").write_text('["good", "paper"]')
    (runs / "b/tags.json").write_text('["goodbye"]')
    (runs / "c/tags.json").write_text('["<script>"]')
    assert listed(client, "words=tag:good") == ["a"]  # a tag must match as a whole
    assert listed(client, "words=tag:PAPER+lr=0.1") == ["a"]
    rows = {row["name"]: row for row in client.get("/runs.json").json()["runs"]}
    assert rows["a"]["tags"] == ["good", "paper"] and rows["c"]["tags"] == []
    assert "tags.json" in rows["c"]["problem"]
    page = client.get("/").text
    assert 'href="/?words=tag%3Agood">good</a>' in page and '<script>"]' not in page

    page = client.get("/tags?run=a&run=b&run=c").text
    assert "goodbye" in page and "tags.json" in page and "<script>&" not in page
    secret = re.search(r'name="form" value="([^"]+)"', page)
    assert secret is not None
    form = {"form": secret[1], "run": ["a", "b"], "tags": "new good", "change": "add"}
    foreign = {"Origin": "http://evil.example"}
    assert client.post("/tags", data=form | {"form": "guess"}).status_code == 403
    assert client.post("/tags", data=form, headers=foreign).status_code == 403
    assert "goodbye" not in (runs / "a/tags.json").read_text()
    answer = client.post("/tags", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/tags?run=a&run=b")
    assert json.loads((runs / "a/tags.json").read_text()) == ["good", "new", "paper"]
    assert json.loads((runs / "b/tags.json").read_text()) == ["good", "goodbye", "new"]
    client.post("/tags", data=form | {"tags": "good", "change": "remove"})
    assert json.loads((runs / "b/tags.json").read_text()) == ["goodbye", "new"]
    for wrong, reason in (
        ({"tags": "a<b"}, "is not a tag"),
        ({"tags": " "}, "no tag is written"),
        ({"run": "nothing"}, "no run"),
        ({"run": "c"}, "damaged"),
    ):
        answer = client.post("/tags", data=form | wrong)
        assert answer.status_code == 403 and reason in answer.text and 'href="/"' in answer.text
    assert client.get("/tags").status_code == 404


def test_an_open_table_notices_a_new_tag(client: TestClient, runs: Path) -> None:
    before = client.get("/")
    tagged = client.get("/", headers={"If-None-Match": before.headers["ETag"]})
    assert tagged.status_code == 304
    (runs / "a/tags.json").write_text('["new"]')
    tagged = client.get("/", headers={"If-None-Match": before.headers["ETag"]})
    assert tagged.status_code == 200 and "tag%3Anew" in tagged.text


def test_grouped_seeds_have_the_mean_and_its_interval(client: TestClient, runs: Path) -> None:
    (runs / "b/metrics.jsonl").write_text(
        json.dumps({"step": 1, "role/solver/reward": 0.9, "role/solver/valid": 0.5}) + "\n"
    )
    found = client.get("/runs.json?seeds=1&sort=run").json()["means"]
    assert [[each["name"] for each in means] for means in found] == [["role/solver/reward"], []]
    (mean,) = found[0]
    # Student's quantile for two runs is 12.706; the standard error is 0.4 / 2.
    assert mean["value"] == pytest.approx(0.7)
    assert (mean["ci_low"], mean["ci_high"]) == pytest.approx(
        (0.7 - 2.5412, 0.7 + 2.5412), rel=1e-3
    )
    page = client.get("/?seeds=1&sort=run").text
    assert "mean of the seeds" in page and "0.700 (-1.84 to 3.24)" in page
    assert client.get("/runs.json?sort=run").json()["means"] == [[], [], []]


def test_the_code_of_a_run_is_shown(client: TestClient, runs: Path) -> None:
    one = {"begun": "2026-01-02 03:04:05", "versions": {"torch": "2.13.0"}, "commit": "c40e9a6" * 4}
    (runs / "a/sessions.json").write_text(json.dumps([one, one | {"changed": True}]))
    ended = {"begun": "x", "commit": "<script>", "ending": "step 3: <b>12%</b> failed"}
    (runs / "b/sessions.json").write_text(json.dumps([ended]))
    (runs / "c/sessions.json").write_text("{")
    rows = {row["name"]: row for row in client.get("/runs.json").json()["runs"]}
    assert (rows["a"]["code"], rows["b"]["code"], rows["c"]["code"]) == ("c40e9a6+", "<script", "")
    assert "sessions.json" in rows["c"]["problem"]
    assert "<script<" not in client.get("/").text
    page = client.get("/run/a").text
    assert "torch 2.13.0" in page and ", with changes" in page
    assert client.get("/run/c").status_code == 200
    assert "The run stopped early" not in page
    page = client.get("/run/b").text
    assert "<script>" not in page
    assert "The run stopped early: step 3: &lt;b&gt;12%&lt;/b&gt; failed" in page


def test_a_run_of_a_sweep_leads_to_the_page_of_the_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "ablation"
    for seed in (0, 1):
        make(folder / f"00{seed}-seed", seed=seed, lr=0.1, rows=[{"role/solver/reward": 0.5}])
        summary = {
            "steps": 1,
            "evaluations": {"held_out": {"after": {"accuracy": 0.25 + seed / 2}}},
        }
        (folder / f"00{seed}-seed/summary.json").write_text(json.dumps(summary))
    points = [
        {"name": f"00{seed}-seed", "choices": {"seed": str(seed)}, "overrides": [f"seed={seed}"]}
        for seed in (0, 1)
    ]
    (folder / "sweep.json").write_text(json.dumps({"command": ["seed=0,1"], "points": points}))
    for places, shown in (([tmp_path / "runs"], True), ([folder / "000-seed"], False)):
        app = application(RunCatalogue(places), cache=tmp_path / "cache")
        with TestClient(app, base_url=LOCAL) as client:
            answer = client.get("/run/000-seed/sweep")
            assert ("/run/000-seed/sweep" in client.get("/").text) == shown
            if shown:
                assert "0.500" in answer.text and "accuracy" in answer.text
                assert answer.headers["Content-Security-Policy"].startswith("sandbox")
            else:  # the folder of the sweep is not among those that the viewer shows
                assert answer.status_code == 404
