"""Tests of untrusted sweep folders: nothing outside is read, no control character is printed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.cli.main import main
from selfplay.errors import RunError
from selfplay.run import sweep
from selfplay.run.report import sweep_report
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from tests.helpers.command_process import one_line
from tests.helpers.damaged_run import RAW

ATTACK = "x\x1b]0;owned\x07\x1b[31m\u202eb\nfake line\r"
"""Text that sets a terminal's title and colour, reorders characters, and starts a new line."""
NAMES = ("../../secret", "/tmp", "..", ".", "", "a/b", "000/../../secret", "a\0b")


def write_run(folder: Path, metrics: Mapping[str, Any] | str) -> Path:
    """Write a finished run with the metrics of its evaluation, as a mapping or as raw JSON."""
    text = metrics if isinstance(metrics, str) else json.dumps(metrics)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "summary.json").write_text(f'{{"evaluations": {{"e": {{"after": {text}}}}}}}')
    return folder


def write_sweep(
    folder: Path, runs: Mapping[str, tuple[Mapping[str, str], Mapping[str, Any] | str]]
) -> Path:
    """Write a sweep of finished runs; `runs` maps each name to its choices and metrics."""
    for name, (_, metrics) in runs.items():
        write_run(folder / name, metrics)
    return record(folder, {name: choices for name, (choices, _) in runs.items()})


def record(folder: Path, points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write only the record of a sweep; `points` maps each name of a run to its choices."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [{"name": n, "choices": dict(c), "overrides": []} for n, c in points.items()]
    (folder / sweep.FILE).write_text(json.dumps({"command": [ATTACK], "points": listed}))
    return folder


def page(folder: Path, run: str) -> tuple[int, str]:
    """Return status code and text of the viewer's page of a sweep; server errors are raised."""
    app = application(RunCatalogue([folder.parent]), cache=folder.parent / "cache")
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get(f"/run/{run}/sweep")
        return answer.status_code, answer.text


def test_the_table_prints_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"a": ({ATTACK: ATTACK}, {ATTACK: 0.5})}
    folder = write_sweep(tmp_path / "sweep", runs)
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    head, row, empty, written = out.splitlines()
    assert "fake line" in head and "fake line" in row and not empty and "report.html" in written
    code, text = page(folder, "a")
    assert code == 200 and "\x1b" not in text and "\u202e" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_run_outside_of_the_sweep_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "secret", {"accuracy": 0.123})
    folder = write_sweep(tmp_path / "runs" / "sweep", {"000": ({}, {"accuracy": 0.5})})
    record(folder, {"000": {}, name: {"seed": "1"}})
    assert main(["report", str(folder)]) == 2
    assert "is no name of a folder in" in one_line(capsys.readouterr().err)
    assert not (folder / "report.html").exists()
    code, text = page(folder, "000")
    assert code == 404 and "is no name of a folder in" in text and "0.123" not in text


@pytest.mark.parametrize("link", ["001", "001/summary.json"])
def test_a_link_out_of_the_sweep_is_refused(
    link: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = write_run(tmp_path / "secret", {"accuracy": 0.123})
    runs = {name: ({"seed": name}, {"accuracy": 0.5}) for name in ("000", "001")}
    folder = write_sweep(tmp_path / "runs" / "sweep", runs)
    if link == "001":
        (folder / "001").rename(tmp_path / "moved")
        (folder / "001").symlink_to(secret)
    else:
        (folder / link).unlink()
        (folder / link).symlink_to(secret / "summary.json")
    assert main(["report", str(folder)]) == 2
    assert "is a link that leads out of the sweep" in one_line(capsys.readouterr().err)
    code, text = page(folder, "000")
    assert code == 404 and "leads out of the sweep" in text and "0.123" not in text


def test_a_sweep_may_be_a_link_and_hold_links_into_itself(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", {"000": ({"seed": "0"}, {"accuracy": 0.5})})
    (folder / "001").symlink_to("000")
    record(folder, {"000": {"seed": "0"}, "001": {"seed": "1"}})
    (tmp_path / "here").symlink_to(folder)
    (row,) = sweep_report.lines(tmp_path / "here")
    assert row.runs == 2


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e308", "-1e308"])
def test_values_that_cannot_be_averaged_are_left_out(value: str, tmp_path: Path) -> None:
    numbers = {"0": value, "1": "0.25", "2": "0.75"}
    runs = {
        f"00{seed}": ({"seed": seed}, f'{{"lost": {value}, "part": {number}}}')
        for seed, number in numbers.items()
    }
    folder = write_sweep(tmp_path / "sweep", runs)
    (row,) = sweep_report.lines(folder)
    assert row.shown("e/lost") == "-" and row.shown("e/part") == "0.500 \u00b1 0.354"
    assert sweep_report.text([row]).splitlines()[1].split()[:2] == ["3", "-"]
    code, text = page(folder, "000")
    assert code == 200 and text.count("<svg") == 2


def test_rewards_that_are_not_finite_are_left_out_of_the_last_steps(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", {"000": ({}, "{}")})
    values = ("NaN", "1e308", "0.25", "0.75")
    lines = [
        f'{{"step": {step}, "role/a/reward": {value}, "role/b/reward": NaN}}\n'
        for step, value in enumerate(values, 1)
    ]
    (folder / "000/metrics.jsonl").write_text("".join(lines))
    (row,) = sweep_report.lines(folder)
    assert row.values == {"role/a/reward": (0.5,), "role/b/reward": ()}


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_no_value_of_a_run_breaks_the_page(
    raw: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {f"00{seed}": ({"seed": str(seed)}, f'{{"accuracy": {raw}}}') for seed in (0, 1)}
    folder = write_sweep(tmp_path / "sweep", runs)
    code = main(["report", str(folder)])
    captured = capsys.readouterr()
    assert code in (0, 2) and (code == 0 or one_line(captured.err))
    assert page(folder, "000")[0] == (404 if code else 200)


def test_runs_may_have_different_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs: dict[str, tuple[Mapping[str, str], Mapping[str, Any] | str]] = {
        "a": ({"credit": "trr", "seed": "0"}, {"accuracy": 0.5}),
        "b": ({"lr": "0.1"}, {"accuracy": 0.25}),
        "c": ({"lr": "0.2", "credit": "grpo"}, {}),
        "d": ({}, {}),
    }
    folder = write_sweep(tmp_path / "sweep", runs)
    assert main(["report", str(folder)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["credit", "lr", "runs", "e,", "accuracy"]
    assert [row.split() for row in rows[:4]] == [
        ["trr", "1", "0.500"],
        ["0.1", "1", "0.250"],
        ["grpo", "0.2", "1", "-"],
        ["1", "-"],
    ]
    code, text = page(folder, "a")
    assert code == 200 and "<td>trr</td><td></td>" in text and "<td></td><td>0.1</td>" in text


@pytest.mark.parametrize("raw", ["[" * 100_000, '{"points": ' + "[" * 100_000, '"\\ud800"'])
def test_a_record_that_is_nested_too_deeply_is_refused(raw: str, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", {"000": ({}, {})})
    (folder / sweep.FILE).write_text(raw)
    with pytest.raises(RunError, match="not the record of a sweep"):
        sweep.read(folder)
    code, text = page(folder, "000")
    assert code == 404 and "not the record of a sweep" in text


def test_a_run_that_is_a_link_out_of_the_sweep_is_not_listed(tmp_path: Path) -> None:
    secret = write_run(tmp_path / "secret", {"accuracy": 0.123})
    folder = write_sweep(tmp_path / "runs" / "sweep", {"000": ({"seed": "0"}, {"accuracy": 0.5})})
    (folder / "001").symlink_to(secret)
    (folder / "002").symlink_to("000")
    (tmp_path / "runs" / "mine").symlink_to(secret)  # a folder of runs may hold links
    (tmp_path / "here").symlink_to(folder)
    for place, names in ((tmp_path / "runs", {"000", "secret"}), (tmp_path / "here", {"000"})):
        catalogue = RunCatalogue([place])
        assert {run.name for run in catalogue.runs()} == names
        (line,) = catalogue.left_out()
        assert "/001 is not listed: it is a link that leads out of the sweep; put a copy" in line
        with TestClient(
            application(catalogue, cache=tmp_path / "cache"), base_url="http://127.0.0.1"
        ) as client:
            assert "/001 is not listed" in client.get("/").text
            assert client.get("/runs.json").json()["left_out"] == [line]
    only = record(tmp_path / "only", {"000": {}})
    (only / "000").symlink_to(secret)
    with pytest.raises(RunError, match="000 is not listed: it is a link"):
        RunCatalogue([only])
