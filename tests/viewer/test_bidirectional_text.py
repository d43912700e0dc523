"""Tests that every page makes characters that reorder text visible."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.testclient import TestClient

from selfplay.run.report.run_report import write_report
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from tests.helpers.damaged_run import BIDI, PAGES, whole_run

KEPT = {"status", "stop_reason", "unit", "better", "_target_"}
"""Keys whose values `spoiled` keeps, because only certain words are valid."""


def spoiled(value: Any, key: str = "") -> Any:
    """Return the value with `BIDI` in all its texts, and in some keys."""
    if isinstance(value, str):
        return value if key in KEPT else f"{value}{BIDI}x"
    if isinstance(value, list):
        return [spoiled(each, key) for each in value]
    if isinstance(value, dict):
        free = key in ("info", "payload", "metrics", "ratings", "entries", "evaluations", "totals")
        return {f"{k}{BIDI}" if free else k: spoiled(each, k) for k, each in value.items()}
    return value


def spoil(path: Path) -> None:
    lines = path.read_text().splitlines()
    if path.suffix == ".jsonl":
        changed = [json.dumps(spoiled(json.loads(line))) for line in lines if line.strip()]
        path.write_text("".join(f"{line}\n" for line in changed))
    else:
        path.write_text(json.dumps(spoiled(json.loads("\n".join(lines)))))


def test_no_page_shows_a_character_that_reorders_text(tmp_path: Path) -> None:
    name = f"made{BIDI}"
    (tmp_path / "runs").mkdir()
    run = whole_run(tmp_path / "runs" / name)
    whole_run(tmp_path / "runs" / "twin")
    for path in [*run.rglob("*.jsonl"), *run.rglob("*.json")]:
        if path.name not in ("metrics.jsonl", "measures.json"):
            spoil(path)
    row = {f"{key}{BIDI}": 0.5 for key in ("role/a/reward", "evaluation/e/a", f"b{BIDI}/c", "d")}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, **row}) + "\n")
    (run / "config.yaml").write_text(f"name: a{BIDI}\n")
    (run / "games" / "one.jsonl").rename(run / "games" / f"one{BIDI}.jsonl")
    app = application(RunCatalogue([tmp_path / "runs"]), cache=tmp_path / "cache")
    addresses = [
        page.replace("/made", f"/{quote(name)}")
        .replace("run=made", f"run={quote(name)}")
        .replace("groups/1/g0", f"groups/1/{quote(f'g0{BIDI}x')}")
        .replace("games/one", f"games/one{quote(BIDI)}")
        for page in PAGES
    ]
    addresses += [f"/run/{quote(BIDI)}", f"/run/{quote(name)}/episodes?text={quote(BIDI)}"]
    addresses += [f"/run/{quote(name)}/groups/1/{quote(BIDI)}", f"/run/{quote(name)}/tasks?task=0"]
    good = 0
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for address in addresses:
            answer = client.get(address)
            good += answer.status_code == 200
            assert answer.status_code in (200, 404), address[:80]
            place = next((i for i, each in enumerate(answer.text) if each in BIDI), None)
            assert place is None, f"{address[:80]}: {answer.text[place - 60 : place + 20]!r}"
    assert good >= 15
    assert not set(BIDI) & set(write_report(run).read_text())
