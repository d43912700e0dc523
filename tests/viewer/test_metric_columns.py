"""Tests of the metric columns of a run: each line is parsed once, damaged lines are left out."""

import json
import math
import os
from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.run.record_reader import read_metrics
from selfplay.viewer import metric_columns
from selfplay.viewer.metric_columns import MetricColumns


def columns_of(run: Path, text: str) -> MetricColumns:
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_text(text)
    made = MetricColumns(run)
    made.update()
    return made


def points(columns: MetricColumns, name: str) -> list[tuple[int, float]]:
    curve = columns.curve(name)
    return list(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


def line(step: object, **metrics: object) -> str:
    return json.dumps({"step": step, **metrics}) + "\n"


def test_only_new_bytes_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = columns_of(tmp_path / "run", line(1, a=0.5) + line(2, a=1.5, b=3))
    parsed: list[bytes] = []
    inner = metric_columns.decode

    def counted(data: bytes) -> object:
        parsed.append(data)
        return inner(data)

    monkeypatch.setattr(metric_columns, "decode", counted)
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write(line(3, a=2.5) + '{"step": 4, "a"')  # an incomplete line
        file.flush()
        made.update()
        assert len(parsed) == 1 and points(made, "a") == [(1, 0.5), (2, 1.5), (3, 2.5)]
        file.write(": 3.5}\n")
    made.update()
    assert len(parsed) == 2 and points(made, "a")[-1] == (4, 3.5)
    made.update()
    assert len(parsed) == 2 and made.names == ["a", "b"] and made.newest == 4


def test_a_record_that_was_rewritten_is_read_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = columns_of(run, line(1, a=0.5) + line(2, a=1.5))
    (run / "new").write_text(line(1, a=7.0))
    os.replace(run / "new", run / "metrics.jsonl")
    made.update()
    assert points(made, "a") == [(1, 7.0)]
    with (run / "metrics.jsonl").open("r+") as file:  # the same file with other and more bytes
        file.write(line(1, a=8.0) + line(2, a=9.0))
    made.update()
    assert points(made, "a") == [(1, 8.0), (2, 9.0)]
    (run / "metrics.jsonl").unlink()
    made.update()
    assert made.names == [] and made.newest == 0


def test_a_repeated_step_counts_once_as_in_the_report(tmp_path: Path) -> None:
    text = line(1, a=1, b=1) + line(3, a=3) + line(2, a=2) + line(1, a=9) + line(4, a=True, c="x")
    made = columns_of(tmp_path / "run", text)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    for name in ("a", "b", "c"):
        assert points(made, name) == [
            (step, row[name]) for step, row in rows.items() if name in row
        ]


def test_hostile_lines_are_counted_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_columns, "CHUNK", 1000)
    monkeypatch.setattr(metric_columns, "LONGEST_LINE", 5000)
    monkeypatch.setattr(metric_columns, "MOST_METRICS", 3)
    bad = ["{", "[1]", '{"step": true}', '{"a": 1}', "", "[" * 3000, line("x").strip()]
    bad += [json.dumps({"step": 1, "long": "x" * 100_000})]
    odd = '{"step": 2, "a": NaN, "b": 1%s, "c": "<b>", "d": [1]}\n' % ("0" * 400)
    many = line(3, **{f"name{n}": n for n in range(9)}, **{"x" * 400: 1})
    made = columns_of(tmp_path / "run", "\n".join(bad) + "\n" + odd + many)
    assert made.damaged.count == len(bad) and ", line 1: " in made.damaged.first
    ((step, value),) = points(made, "a")
    assert step == 2 and math.isnan(value) and points(made, "b") == [(2, math.inf)]
    assert made.names == ["a", "b", "name0"] and made.omitted == 9


def test_a_line_without_end_is_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_columns, "LONGEST_LINE", 2_000_000)
    run = tmp_path / "run"
    run.mkdir()
    with (run / "metrics.jsonl").open("w") as file:
        file.write(line(1, a=1.0))
        file.flush()
        file.seek(50_000_000)  # zeros, which take no disk space
        file.write(" ")
    made = MetricColumns(run)
    made.update()
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n" + line(2, a=2.0))
    made.update()
    assert points(made, "a") == [(1, 1.0), (2, 2.0)] and made.damaged.count == 1


def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(RunError, match="is a pipe"):
        MetricColumns(run).update()
    (run / "metrics.jsonl").unlink()
    (tmp_path / "secret").write_text(line(1, a=1))
    (run / "metrics.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(RunError, match="leads out of"):
        MetricColumns(run).update()
    (run / "metrics.jsonl").unlink()
    monkeypatch.setattr(metric_columns, "MOST_VALUES", 15)
    with pytest.raises(RunError, match="more than 15 values"):
        columns_of(run, line(1, a=1) + line(2, a=1))
