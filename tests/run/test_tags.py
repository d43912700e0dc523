"""Tests of the tags of runs: their file, and the refusal of invalid tags and damaged files."""

import json
from pathlib import Path

import pytest

from selfplay.cli.main import main
from selfplay.errors import ConfigError, RunError
from selfplay.run.tags import MOST_TAGS, change_tags, read_tags


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 0\n")
    return folder


def test_tags_are_added_removed_and_sorted(run: Path) -> None:
    assert read_tags(run) == ()
    assert change_tags(run) == [] and not (run / "tags.json").exists()
    assert change_tags(run, add=["paper", "baseline", "paper"]) == ["baseline", "paper"]
    assert change_tags(run, add=["v2.1+x-y"], remove=["paper", "unknown"]) == [
        "baseline",
        "v2.1+x-y",
    ]
    assert json.loads((run / "tags.json").read_text()) == ["baseline", "v2.1+x-y"]
    assert read_tags(run) == ("baseline", "v2.1+x-y")


@pytest.mark.parametrize("tag", ["", "two words", "<b>", "a" * 41, "a\n", "a\x1b[2J", "../x"])
def test_a_text_that_is_no_tag_is_refused(run: Path, tag: str) -> None:
    with pytest.raises(ConfigError, match="is not a tag"):
        change_tags(run, add=[tag])
    assert not (run / "tags.json").exists()


def test_a_run_has_a_limited_number_of_tags(run: Path) -> None:
    many = [f"tag{number}" for number in range(MOST_TAGS)]
    assert len(change_tags(run, add=many)) == MOST_TAGS
    with pytest.raises(RunError, match="at most"):
        change_tags(run, add=["more"])
    assert read_tags(run) == tuple(sorted(many))


@pytest.mark.parametrize(
    "text", ["{", "{}", '["<script>"]', "[1]", "[[]]", json.dumps(["a"] * 21), "[" * 9_000]
)
def test_a_damaged_file_is_one_line_and_stays(run: Path, text: str) -> None:
    (run / "tags.json").write_text(text)
    for act in (lambda: read_tags(run), lambda: change_tags(run, add=["a"])):
        with pytest.raises(RunError, match=r"tags\.json") as error:
            act()
        assert "\n" not in str(error.value)
    assert (run / "tags.json").read_text() == text


def test_a_tags_file_that_is_a_link_is_refused(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('["secret"]')
    (run / "tags.json").symlink_to(outside)
    for act in (lambda: read_tags(run), lambda: change_tags(run, add=["a"])):
        with pytest.raises(RunError, match=r"symbolic link|leads out"):
            act()
    assert outside.read_text() == '["secret"]'


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", str(run), "--add", "old", "--add", "good"]) == 0
    assert main(["tag", str(run), "--remove", "old"]) == 0
    assert capsys.readouterr().out == f"{run}  good old\n{run}  good\n"
    assert main(["tag", str(run.parent), "--add", "x"]) == 2
    assert main(["tag", str(run), "--add", "two words"]) == 2
    errors = capsys.readouterr().err
    assert "not a run folder" in errors and "is not a tag" in errors and errors.count("\n") == 2
