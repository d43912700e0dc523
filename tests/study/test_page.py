"""The page of a study and its files."""

import json
from pathlib import Path

import pytest

from selfplay.study import page
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Result, Table


def test_the_page_and_the_json_are_complete_if_the_pictures_for_print_are_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "save", interrupted)
    curve = CurvePlot(title="A curve", x=[1, 2], series={"a": [0.0, 1.0]}, bands={}, label="y")
    table = Table(title="A table", columns=["", "uses"], rows=[["a", 7]])
    result = Result(measure="made", title="Made", definition="", tables=[table], drawings=[curve])
    with pytest.raises(KeyboardInterrupt):
        page.write(result, tmp_path, command="selfplay study made")
    written = (tmp_path / "made.html").read_text()
    assert "A table" in written and "A curve" in written and "<svg" in written
    assert json.loads((tmp_path / "made.json").read_text())["tables"][0]["rows"] == [
        {"": "a", "uses": 7}
    ]
