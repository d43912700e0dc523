"""Results of studies as text tables and as strict JSON."""

import json
import math
from dataclasses import replace

from selfplay.study.result import Cell, Result, Table


def test_numbers_that_are_not_finite_are_null() -> None:
    row = [math.inf, -math.inf, math.nan, 1.5, None, "inf"]
    table = Table(title="t", columns=list("abcdef"), rows=[row])
    made = Result(measure="m", title="m", definition="", tables=[table])
    text = json.dumps(made.to_json(), allow_nan=False)
    assert list(json.loads(text)["tables"][0]["rows"][0].values()) == [
        *[None] * 3,
        1.5,
        None,
        "inf",
    ]


def test_columns_of_equal_names_keep_their_values() -> None:
    table = Table(
        title="t", columns=["view", "view", "uses", "uses"], rows=[["King", 0.5, 0.25, 12]]
    )
    assert table.to_json()["rows"] == [
        {"view": "King", "view (2)": 0.5, "uses": 0.25, "uses (2)": 12}
    ]


def test_a_line_break_in_a_cell_does_not_break_the_table() -> None:
    rows: list[list[Cell]] = [["a\nb\r\nc", 1], ["a long cell", 2]]
    table = Table(title="said", columns=["message", "count"], rows=rows)
    made = Result(measure="m", title="m", definition="", tables=[table])
    lines = made.to_text().splitlines()
    assert lines[-2:] == ["a\\nb\\nc      1", "a long cell  2"]


def test_a_wide_table_is_cut_on_a_terminal_alone() -> None:
    table = Table(title="t", columns=["view", "a", "b", "c"], rows=[["v", 1, 2, 3]], terminal=2)
    result = Result(measure="m", title="T", definition="D", tables=[table])
    assert (
        result.to_text() == "T\n\nt\nview  a\nv     1\n(2 more columns: on the page and in --json)"
    )
    assert table.to_json()["rows"] == [{"view": "v", "a": 1, "b": 2, "c": 3}]
    whole = replace(result, tables=[replace(table, terminal=4)])
    assert whole.to_text().splitlines()[-1] == "v     1  2  3"
