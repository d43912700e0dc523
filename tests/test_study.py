"""`selfplay study`: what it prints of a run, and what it refuses in one line."""

import json
import shutil
from pathlib import Path

import pytest
from smoke_run import finished, one_line, run

SHORT = ("+experiment=kuhn", "run.steps=2", "run.checkpoint_every=1", "warmstart.steps=40")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Kuhn run of two steps."""
    place = tmp_path_factory.mktemp("study")
    small = ("sampler.group_size=8", "evaluations.hands.samples=1", "run.threads=1")
    outcome = run("train", *SHORT, *small, "run.name=hand", cwd=place)
    assert outcome.code == 0, outcome.err
    return place


def test_every_kept_checkpoint_is_measured(folder: Path) -> None:
    outcome = run("study", "exploitability", "runs/hand", "--all", "--json", cwd=folder)
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert told["measure"] == "exploitability" and told["direction"] == "exact"
    assert [each["step"] for each in told["results"]] == [0, 1, 2]
    for each in told["results"]:
        assert each["exploitability"] == pytest.approx(each["nash_conv"] / 2)
        assert 0 < each["exploitability"] <= 1 and 0 <= each["elsewhere"] <= 1
        assert len(each["strategy"]) == 12
        assert all(sum(mix.values()) == pytest.approx(1) for mix in each["strategy"].values())
    assert len({each["nash_conv"] for each in told["results"]}) == 3, "the same weights thrice"
    one = run("study", "exploitability", "runs/hand", "--step", "1", "--json", cwd=folder)
    assert json.loads(one.out)["results"] == told["results"][1:2]
    newest = run("study", "exploitability", "runs/hand", "--policy=base", "--json", cwd=folder)
    assert json.loads(newest.out)["results"] == told["results"][2:]


def test_a_damaged_checkpoint_is_left_out_and_told(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "runs/hand", tmp_path / "hand")
    (copy / "checkpoints/000002/state.json").write_text("{}")
    outcome = run("study", "exploitability", "hand", "--json", cwd=tmp_path)
    assert [each["step"] for each in json.loads(outcome.out)["results"]] == [1]
    assert "checkpoint 000002: state.json is damaged; left out" in outcome.err


def test_what_is_printed_reads_as_a_table(folder: Path) -> None:
    outcome = run("study", "exploitability", "runs/hand", "--all", cwd=folder)
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["step", "exploitability", "NashConv", "elsewhere"]
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert sum(line.startswith("  player_") for line in lines) == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["exploitability", "/nowhere"], "no run folder"),
        (["exploitability", "runs/hand", "--step", "7"], "no checkpoint of step 7; it has 0, 1, 2"),
        (["exploitability", "runs/hand", "--step", "1", "--all"], "drop either"),
        (["exploitability", "runs/hand", "--policy", "bas"], "did you mean 'base'?"),
        (["exploitabilty", "runs/hand"], "did you mean 'exploitability'?"),
        (["exploitability"], "required: run"),
        (["exploitability", "runs/hand", "more"], "unexpected argument 'more'"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    folder: Path, arguments: list[str], words: str
) -> None:
    outcome = run("study", *arguments, cwd=folder)
    assert outcome.code == 2 and words in one_line(outcome.err)


def test_a_run_of_another_game_says_what_would_serve(tmp_path: Path) -> None:
    outcome = run("study", "exploitability", str(finished()), cwd=tmp_path)
    assert outcome.code == 2
    said = one_line(outcome.err)
    assert "absolute_zero_v0 has no methods openspiel" in said and "arena=kuhn" in said
