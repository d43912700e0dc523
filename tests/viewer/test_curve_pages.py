"""Tests of the page of curves: its data against numbers computed by hand, and in a browser."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from tests.helpers.browser import Browser, browser
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import served

LOCAL = "http://127.0.0.1"
REWARD = "role/solver/reward"


def make(
    run: Path, *, seed: int, steps: int = 4, lr: float = 0.1, odd: dict[str, Any] | None = None
) -> Path:
    """Make a run in which the reward of step s is s + seed, with an evaluation every 2 steps."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(
        f"seed: {seed}\nlearner: {{lr: {lr}}}\nrun: {{name: {run.name}}}\n"
    )
    rows = []
    for step in range(1, steps + 1):
        row = {"step": step, REWARD: step + seed, "policy/base/loss": -0.5 * step, **(odd or {})}
        rows.append(row | ({"evaluation/held_out/accuracy": 0.25 * step} if step % 2 == 0 else {}))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make(tmp_path / "runs/zero", seed=0)
    make(tmp_path / "runs/two", seed=2, steps=2)
    make(tmp_path / "runs/fast", seed=0, lr=0.5)
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path, tmp_path: Path) -> Iterator[TestClient]:
    made = application(RunCatalogue([runs]), cache=tmp_path / "cache")
    with TestClient(made, base_url=LOCAL) as client:
        yield client


def data(client: TestClient, query: str) -> dict[str, Any]:
    answer = client.get(f"/curves.json?{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_only_type_of_task_has_no_curves_of_its_own(client: TestClient, runs: Path) -> None:
    whole, typed = "evaluation/asked/accuracy", "evaluation/asked/question/accuracy"
    make(runs / "asked", seed=0, odd={whole: 0.5, typed: 0.5})
    known = {name for name, _ in client.get("/curves/names.json?run=asked").json()["metrics"]}
    assert whole in known and typed not in known
    assert data(client, f"run=asked&metric={typed}")["charts"][0]["series"], "shown if requested"
    for page in ("/run/asked?section=Evaluation", "/compare?run=asked&run=zero"):
        text = client.get(page).text
        assert "asked" in text and "question" not in text, page


def test_the_curves_of_several_runs(client: TestClient) -> None:
    found = data(client, f"run=zero&run=two&metric={REWARD}&metric=none")
    reward, none = found["charts"]
    assert [each["label"] for each in reward["series"]] == ["zero", "two"]
    assert reward["series"][0]["steps"] == [1, 2, 3, 4]
    assert reward["series"][1]["values"] == [3.0, 4.0] and none["series"] == []
    assert reward["evaluated"] == [2, 4] and found["known"] == 3
    assert [run["steps"] for run in found["runs"]] == [4, 2]


def test_a_run_has_its_number_and_its_marks_in_every_chart(client: TestClient, runs: Path) -> None:
    """A chart without a curve of `zero` has none of its marks, and other runs keep their number."""
    make(runs / "own", seed=0, lr=0.7, steps=3, odd={"arena/own": 1.0})
    query = f"run=zero&run=two&run=fast&run=own&metric={REWARD}&metric=arena/own"
    for seeds, numbers, own in (("", [0, 1, 2, 3], 3), ("&seeds=1", [0, 1, 2], 2)):
        reward, alone = data(client, query + seeds)["charts"]
        assert [each["number"] for each in reward["series"]] == numbers
        assert [each["number"] for each in alone["series"]] == [own]
        assert reward["evaluated"] == [2, 4] and alone["evaluated"] == [2]


def test_runs_that_differ_only_in_the_seed_are_pooled(client: TestClient) -> None:
    query = f"run=zero&run=two&run=fast&seeds=1&smooth=1&metric={REWARD}"
    pooled, alone = data(client, query)["charts"][0]["series"]
    assert pooled["seeds"] == 2 and pooled["counts"] == [2, 2, 1, 1]
    assert pooled["values"] == [2.0, 3.0, 3.0, 4.0]
    assert pooled["low"] == [1.0, 2.0, 3.0, 4.0] and pooled["high"] == [3.0, 4.0, 3.0, 4.0]
    assert alone["label"] == "fast" and "low" not in alone


def test_the_latest_value_of_pooled_seeds_says_how_many_reached_it(client: TestClient) -> None:
    query = f"run=zero&run=two&seeds=1&metric={REWARD}"
    (pooled,) = data(client, query)["charts"][0]["series"]
    assert pooled["seeds"] == 2 and pooled["latest"] == "4 (1 of 2 seeds)"
    (alone,) = data(client, f"run=zero&seeds=1&metric={REWARD}")["charts"][0]["series"]
    assert alone["latest"] == "4"


def test_evaluations_of_pooled_seeds_are_not_smoothed(client: TestClient, runs: Path) -> None:
    for seed in (5, 6):
        make(runs / f"long{seed}", seed=seed, steps=400)
    metrics = f"metric=evaluation/held_out/accuracy&metric={REWARD}"
    found = data(client, f"run=long5&run=long6&seeds=1&{metrics}")["charts"]
    (accuracy,), (reward,) = (chart["series"] for chart in found)
    assert accuracy["window"] == 1 and reward["window"] > 1
    assert accuracy["values"] == [0.25 * step for step in accuracy["steps"]]


def test_the_running_mean_and_the_shown_steps(client: TestClient) -> None:
    (chart,) = data(client, f"run=zero&metric={REWARD}&smooth=2&from=3&to=3")["charts"]
    (series,) = chart["series"]
    assert series["steps"] == [2, 3, 4] and series["means"] == [1.5, 2.5, 3.5]
    assert series["latest"] == "4" or float(series["latest"]) == 4.0


def test_an_unchanged_run_is_answered_without_reading(
    client: TestClient, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.get("/curves.json?run=zero")
    tag = {"If-None-Match": first.headers["ETag"]}
    with monkeypatch.context() as patch:
        for name in ("open_regular", "decode"):
            patch.delattr(f"selfplay.viewer.metric_columns.{name}")
        same = client.get("/curves.json?run=zero", headers=tag)
    assert same.status_code == 304 and float(same.headers["X-Look-Again"]) == 5
    assert client.get("/curves.json?run=zero&smooth=3", headers=tag).status_code == 200
    with (runs / "zero/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, REWARD: 9.0}) + "\n")
    after = client.get("/curves.json?run=zero", headers=tag)
    assert after.status_code == 200 and after.json()["runs"][0]["steps"] == 5


def test_a_long_run_is_thinned_and_keeps_its_extremes(client: TestClient, runs: Path) -> None:
    rows = [{"step": n, "a": float(n == 7777) - float(n == 1234)} for n in range(1, 20_001)]
    (runs / "zero/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ((series,),) = [chart["series"] for chart in data(client, "run=zero&metric=a")["charts"]]
    assert len(series["steps"]) <= 801
    assert {1234, 7777, 20_000} <= set(series["steps"]) and {-1.0, 1.0} <= set(series["values"])


def test_a_wrong_query_gives_an_error_of_one_line(client: TestClient) -> None:
    for query in ("", "run=none", "&".join(f"run={n}" for n in range(40))):
        answer = client.get(f"/curves.json?{query}")
        assert answer.status_code == 404 and "\n" not in answer.json()["error"]
        assert client.get(f"/curves?{query}").status_code == 404
    odd = "run=zero&smooth=x&from=-1&to=99999999999999&log=9&find=%3Cscript%3E&metric=%00"
    assert data(client, odd)["charts"][0]["series"] == []
    page = client.get(f"/curves?{odd}").text
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_hostile_records_give_valid_json(client: TestClient, runs: Path) -> None:
    odd = {HOSTILE: 1.0, "nan": float("nan"), "huge": 1e308, "text": "1", "list": [1]}
    make(runs / "odd", seed=0, odd=odd)
    (runs / "odd/config.yaml").write_text("a: &a [1]\nb: [*a, *a]\nc: ${oc.env:HOME}\nseed: [")
    with (runs / "odd/metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    names = client.get("/curves/names.json?run=odd").json()["metrics"]
    hostile = next(name for name, _ in names if "script" in name)
    found = data(client, "run=odd&run=zero&seeds=1&metric=nan&metric=huge")
    assert found["charts"][0]["series"][0]["values"] == [None] * 4
    assert found["runs"][0]["problem"] == (
        "left out one damaged line: metrics.jsonl, line 5: not a step with metrics"
    )
    answer = client.get("/curves.json", params={"run": "odd", "metric": hostile})
    assert (
        answer.headers["Content-Type"] == "application/json" and len(answer.json()["charts"]) == 1
    )
    assert "\u202e" not in answer.json()["charts"][0]["title"]


def test_a_study_is_a_curve_and_marks_its_checkpoints(client: TestClient, runs: Path) -> None:
    rows = [{"step": 0, "gap": 1.0, "word": "a"}, {"step": 4, "gap": 0.25, "word": "b"}]
    study = {"measure": "m", "title": "T", "tables": [{"title": "", "rows": rows}]}
    before = client.get("/curves.json?run=zero")
    (runs / "zero/studies").mkdir()
    (runs / "zero/studies/m.json").write_text(json.dumps(study))
    (runs / "zero/studies/damaged.json").write_text("{")
    tag = {"If-None-Match": before.headers["ETag"]}
    assert client.get("/curves.json?run=zero", headers=tag).status_code == 200
    names = client.get("/curves/names.json?run=zero").json()["metrics"]
    assert [name for name, _ in names if name.startswith("study/")] == ["study/m/gap"]
    found = data(client, f"run=zero&run=two&metric=study/m/gap&metric={REWARD}")
    assert found["charts"][0]["studied"] == [0, 4] and found["known"] == 4
    (series,) = found["charts"][0]["series"]
    assert (series["steps"], series["values"]) == ([0, 4], [1.0, 0.25])
    (runs / "zero/studies/m.json").unlink()
    assert data(client, f"run=zero&metric={REWARD}")["charts"][0]["studied"] == []


def test_the_page_loads_two_scripts_of_the_package(client: TestClient) -> None:
    page = client.get("/curves?run=zero").text
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert "script-src 'self';" in policy and "unsafe" not in policy and "http" not in policy
    assert re.findall(r"<script[^>]*>(.*?)</script>", page) == ["", ""]
    assert re.findall(r'<script src="([^"]+)"', page) == ["/uplot.js", "/curves.js"]
    assert not re.search(r"\son\w+=|\sstyle=", page)
    assert 'href="/run/zero"' in page  # a page that needs no scripts


def test_the_library_is_the_published_one(client: TestClient) -> None:
    folder = resources.files("selfplay.run.report") / "templates/uplot"
    source = json.loads((folder / "source.json").read_text())
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == source["sha256"][name]
    assert "MIT License" in (folder / "LICENSE").read_text()
    assert client.get("/uplot.js").content == (folder / "uPlot.iife.min.js").read_bytes()


# In a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not shutil.which("chromium"):
        pytest.skip("needs the browser chromium")
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


def test_metrics_are_found_pinned_zoomed_and_kept_in_the_address(
    shown: Browser, runs: Path
) -> None:
    make(runs / "odd", seed=0, odd={HOSTILE: 1.0})
    with served(runs) as address:
        tab = shown.open(f"{address}curves?run=zero&run=two&run=odd&metric={REWARD}")
        tab.wait("document.querySelectorAll('.uplot canvas').length === 1")
        tab.run(
            "const find = document.querySelector('[name=find]'); find.value = 'script';"
            "find.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        tab.wait("document.querySelectorAll('.matches button').length === 1")
        tab.run("document.querySelector('.matches button').click()")
        tab.wait("document.querySelectorAll('.uplot canvas').length === 2")
        assert tab.run("document.querySelectorAll('main img, main svg, main script').length") == 0
        assert "owned" not in tab.run("document.title")
        tab.run("document.querySelector('.unpin').click()")
        tab.wait("document.querySelectorAll('.uplot canvas').length === 1")
        tab.run("document.querySelector('[name=log]').click()")
        tab.run("document.querySelector('[name=seeds]').click()")
        assert tab.wait("document.body.innerText.includes('mean of 3') && location.search")
        tab.drag(".u-over", 0.3, 0.9)
        tab.wait("location.search.includes('from=')")
        query = tab.run("location.search")
        assert "log=1" in query and "seeds=1" in query and "to=" in query
        tab.reload()
        tab.wait("document.querySelectorAll('.uplot canvas').length === 1")
        assert tab.run("document.querySelector('[name=log]').checked")
        assert tab.run("!document.querySelector('[name=whole]').hidden")
        assert tab.run("location.search") == query


def test_axes_name_the_step_and_a_count_of_0_ends_at_1(shown: Browser, runs: Path) -> None:
    make(runs / "calm", seed=0, odd={"episodes/failed": 0})
    with served(runs) as address:
        tab = shown.open(f"{address}curves?run=calm&metric=episodes/failed")
        tab.wait("document.querySelectorAll('.uplot canvas').length === 1")
        plot = "charts.get('episodes/failed').plot"
        assert tab.run(f"[{plot}.scales.y.min, {plot}.scales.y.max].join()") == "0,1"
        assert tab.run(f"{plot}.axes[0].label") == "step"


def test_the_axis_of_fractions_and_of_a_value_that_stays(shown: Browser, runs: Path) -> None:
    made = {"role/solver/valid": (0.999, 0.999), "arena/flat": (-1, -1), "arena/high": (1.5, 0.5)}
    rows = [{"step": n + 1, **{name: both[n] for name, both in made.items()}} for n in (0, 1)]
    (runs / "zero/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ends = "[plot.scales.y.min, plot.scales.y.max].map(end => +end.toFixed(4)).join()"
    expected = {"role/solver/valid": "0.8991,1", "arena/flat": "-1.1,-0.9", "arena/high": "0.4,1.6"}
    with served(runs) as address:
        query = "&".join(f"metric={name}" for name in expected)
        tab = shown.open(f"{address}curves?run=zero&{query}")
        tab.wait("document.querySelectorAll('.uplot canvas').length === 3")
        assert tab.run("charts.get('role/solver/valid').chart.unit") == "fraction"
        for name, pair in expected.items():
            assert tab.run(f"(plot => {ends})(charts.get('{name}').plot)") == pair, name


def test_a_run_has_one_colour_in_all_charts(shown: Browser, runs: Path) -> None:
    make(runs / "own", seed=0, odd={"arena/own": 1.0})
    with served(runs) as address:
        query = f"run=zero&run=own&metric={REWARD}&metric=arena/own"
        tab = shown.open(f"{address}curves?{query}")
        tab.wait("document.querySelectorAll('.uplot canvas').length === 2")
        swatches = "[...document.querySelectorAll('.legend .swatch')].map(s => s.className).join()"
        assert tab.run(swatches) == "swatch swatch-1,swatch swatch-2,swatch swatch-2"
        strokes = "[...charts.values()].map(made => made.plot.series.at(-1).stroke()).join()"
        assert tab.run(strokes) == tab.run("[colour('--series-2'), colour('--series-2')].join()")


def test_an_open_page_follows_the_run_and_fits_a_phone(shown: Browser, runs: Path) -> None:
    with served(runs) as address:
        tab = shown.open(f"{address}curves?run=zero&metric={REWARD}", width=360)
        tab.wait("document.querySelectorAll('.uplot canvas').length === 1")
        assert tab.run("document.documentElement.scrollWidth") <= 360
        with (runs / "zero/metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 5, REWARD: 123.5}) + "\n")
        tab.wait("document.body.innerText.includes('123.5') || /124/.test(document.body.innerText)")
