"""Tests of the pages of studies: the list, tables, curves by step, and damaged files."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.study import page as study_page
from selfplay.study.result import Result, Table
from selfplay.study.stats.bootstrap import Estimate
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from selfplay.viewer.stored_studies import MOST_ROWS, StoredTable, read_studies
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import five_episodes, served
from tests.viewer.test_browser import seen


@pytest.fixture
def made(tmp_path: Path) -> Path:
    run = five_episodes(tmp_path / "made")
    (run / "studies").mkdir()
    return run


@pytest.fixture
def client(made: Path, tmp_path: Path) -> Iterator[TestClient]:
    app = application(RunCatalogue([made]), cache=tmp_path / "cache")
    with TestClient(app, base_url="http://127.0.0.1") as opened:
        yield opened


def study(run: Path, name: str, **fields: Any) -> None:
    data = {"measure": name, "title": f"Title of {name}", **fields}
    (run / "studies" / f"{name}.json").write_text(json.dumps(data))


def test_a_study_that_the_command_wrote_is_listed_and_opened(
    made: Path, client: TestClient
) -> None:
    gain = Estimate(
        name="gain", value=0.25, low=0.125, high=0.5, method="", unit="episode", count=8
    )
    rows = [[0, 0.75], [10, 0.5], [20, 0.25]]
    table = Table(title="By step", columns=["step", "gap"], rows=rows)
    result = Result(
        measure="gains", title="Gains of made", definition="D.", estimates=[gain], tables=[table]
    )
    study_page.write(result, made / "studies", command="selfplay study gains made")
    listing = client.get("/run/made/studies").text
    assert 'href="/run/made/studies/gains"' in listing and "0.125 to 0.5" in listing
    opened = client.get("/run/made/studies/gains").text
    assert "<h1>Gains of made</h1>" in opened and "8 x episode" in opened
    assert "gap, by step" in opened and opened.count("<svg") == 1
    assert 'href="/run/made/page/studies/gains.html"' in opened
    assert client.get("/run/made/page/studies/gains.html").status_code == 200
    [data] = client.get("/run/made/studies.json").json()
    assert data["study"]["estimates"][0]["ci_high"] == 0.5


def test_the_tab_is_shown_only_for_a_run_with_studies(made: Path, client: TestClient) -> None:
    assert "/run/made/studies" not in client.get("/run/made").text
    study(made, "gains")
    assert 'href="/run/made/studies"' in client.get("/run/made").text


def test_a_curve_needs_two_steps_each_in_one_row_and_skips_other_cells() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 20, "gap": 0.5, "word": "a"},
        {"step": 0, "gap": 1, "word": "b"},
    ]
    [chart] = StoredTable(title="", rows=rows).charts()
    assert (tuple(chart.series[0].steps), tuple(chart.series[0].values)) == ((0, 20), (1.0, 0.5))
    assert not StoredTable(title="", rows=rows[:1]).charts()
    assert not StoredTable(title="", rows=[*rows, {"step": 0, "gap": 2.0}]).charts()
    assert not StoredTable(title="", rows=[{"step": "x", "gap": 1}, {"step": 1, "gap": 1}]).charts()
    huge: list[dict[str, Any]] = [
        {"step": 0, "gap": 10**400},
        {"step": 1, "gap": float("inf")},
        {"step": 2, "gap": 1},
    ]
    table = StoredTable(title="", rows=huge)
    assert not table.charts() and [row[1] for row in table.shown()] == ["-", "-", "1"]


def test_a_damaged_file_is_reported_in_one_line_and_others_are_shown(
    made: Path, client: TestClient, tmp_path: Path
) -> None:
    study(made, "good")
    (made / "studies" / "broken.json").write_text("{")
    (made / "studies" / "deep.json").write_text("[" * 100_000)
    study(made, "other", tables=[{"title": "t", "rows": [{"a": {"b": 1}}]}])
    (tmp_path / "secret.json").write_text('{"measure": "m", "title": "secret words"}')
    os.symlink(tmp_path / "secret.json", made / "studies" / "leak.json")
    os.mkfifo(made / "studies" / "pipe.json")
    found = {each.name: each for each in read_studies(made)}
    assert found["good"].study and all(
        found[name].study is None and found[name].problem and "\n" not in found[name].problem
        for name in ("broken", "deep", "other", "leak", "pipe")
    )
    listing = client.get("/run/made/studies").text
    assert "Title of good" in listing and "secret words" not in listing
    assert client.get("/run/made/studies/broken").status_code == 404
    assert client.get("/run/made/studies/none").status_code == 404
    assert client.get("/run/made/studies/..%2f..%2fsecret").status_code == 404


def hostile(run: Path) -> None:
    rows = [{"step": 0, HOSTILE: 1.0, "w": HOSTILE}, {"step": 1, HOSTILE: 2.0, "w": HOSTILE}]
    estimate = {"name": HOSTILE, "value": 1.0, "notes": HOSTILE, "n": 1}
    words = {"definition": HOSTILE, "notes": [HOSTILE], "params": {HOSTILE: HOSTILE}}
    tables = [{"title": HOSTILE, "rows": rows}]
    study(run, "bad", **words, tables=tables, estimates=[{**estimate, "unit_of_resampling": "<b>"}])
    (run / "studies" / "bad'\"><img src=x>.json").write_text("{")


def test_hostile_words_of_a_study_are_escaped(made: Path, client: TestClient) -> None:
    hostile(made)
    for address in ("/run/made/studies", "/run/made/studies/bad"):
        answer = client.get(address)
        assert answer.status_code == 200 and "onerror" in answer.text
        assert "<img" not in answer.text
        assert answer.text.count("<script") == 1  # the script of the page itself
    assert "1 x &lt;b&gt;" in answer.text


def test_a_long_table_is_cut_with_a_note(made: Path, client: TestClient) -> None:
    rows = [{"name": f"row{n}"} for n in range(MOST_ROWS + 5)]
    study(made, "long", tables=[{"title": "t", "rows": rows}])
    text = client.get("/run/made/studies/long").text
    assert f"row{MOST_ROWS - 1}<" in text and f"row{MOST_ROWS}<" not in text
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 5} rows" in text


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs the browser chromium")
def test_a_real_browser_runs_nothing_of_a_study(made: Path, tmp_path: Path) -> None:
    hostile(made)
    with served(made) as address:
        shown = seen(f"{address}run/made/studies/bad", tmp_path / "profile", milliseconds=2000)
    assert "<title>Title of bad" in shown and "onerror" in shown and "<svg" in shown
    assert "<img" not in shown and "<title>owned" not in shown
