"""Tests of `selfplay new`: the parts that it writes run, and their tests pass."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from selfplay.cli import new
from selfplay.cli.main import main
from tests.helpers.repository import ROOT

PARTS = {
    "arena": "same_side",
    "role": "thinker",
    "credit": "above_median",
    "objective": "square_penalty",
    "curriculum": "growing_sums",
    "sampler": "both_ends",
    "measure": "wordiness",
}
TESTS = 34
"""Number of tests of these parts."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one part of every kind, written by the command."""
    made = tmp_path_factory.mktemp("author")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for kind, name in PARTS.items():
            assert main(["new", kind, name]) == 0
    return made


def test_every_kind_is_written() -> None:
    assert set(PARTS) == set(new.KINDS)


def test_the_files_of_each_part(folder: Path) -> None:
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {
        *(f"my_games/{name}.py" for name in PARTS.values()),
        *(f"my_games/test_{name}.py" for name in PARTS.values()),
        "my_configs/arena/same_side.yaml",
        "my_configs/evaluations/same_side.yaml",
        "my_configs/roles/thinker.yaml",
        "my_configs/credit/above_median.yaml",
        "my_configs/objective/square_penalty.yaml",
        "my_configs/curriculum/growing_sums.yaml",
        "my_configs/sampler/both_ends.yaml",
    }
    for path in written:
        assert not re.search("@[A-Za-z]+@", (folder / path).read_text(encoding="utf-8")), path


def test_the_written_tests_pass(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "my_games", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-W", "ignore"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{TESTS} passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("kind", [kind for kind in PARTS if new.KINDS[kind].groups])
def test_the_written_configs_work(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    command = new.KINDS[kind].command.replace("@configs@", "my_configs")
    words = command.replace("@name@", PARTS[kind]).split()[1:]
    assert main([*words, "--cfg"] if words[0] == "train" else words) == 0
    printed = capsys.readouterr().out
    assert "fault:" not in printed
    if kind == "arena":
        assert "evaluations.same_side: task game" in printed
    if kind == "credit":
        assert "my_games.above_median.AboveMedian" in printed
    if kind == "objective":
        assert "my_games.square_penalty.SquarePenalty" in printed
    if kind in ("curriculum", "sampler"):
        name = PARTS[kind]
        assert main(["check", *words[1:3], "+experiment=tiny/tools", f"{kind}={name}"]) == 0
        assert "no faults" in capsys.readouterr().out


@pytest.mark.parametrize("check", [["check", "--ignore", "D,I001"], ["format", "--check"]])
def test_the_written_code_has_the_style_of_the_library(check: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "ruff", *check, "--config", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "my_games"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["arena", "same_side"], "my_games/same_side.py exists"),
        (["role", "same_side"], "my_games/same_side.py exists"),
        (["arena", "Rock"], "'Rock' is not valid"),
        (["arena", "../rock"], "'../rock' is not valid"),
        (["arena", "class"], "NAME 'class' is a word of Python; choose another name"),
        (["arena", "null"], "NAME 'null' is a word of YAML; choose another name"),
        (["arena", "sums"], "the library has evaluations=sums; choose another name"),
        (["arena", "test_rock"], "'test_rock' is not valid"),
        (["arena", "r" * 61], "is not valid"),
        (["arena", "kuhn"], "the library has arena=kuhn"),
        (["curriculum", "kuhn"], "the library has curriculum=kuhn"),
        (["sampler", "dynamic"], "the library has sampler=dynamic"),
        (["objective", "dapo"], "the library has objective=dapo"),
        (["objective", "loss_inputs"], "'loss_inputs' is the name of a class of the library"),
        (["sampler", "rollout_fn"], "'rollout_fn' is the name of a class of the library"),
        (["arena", "rollout"], "'rollout' is the name of a class of the library"),
        (["arenas", "rock"], "no kind 'arenas'; did you mean 'arena'?"),
        (["arena", "rock", "--package", "arenas"], "arenas is a package of the library"),
        (["arena", "rock", "--package", "a/b"], "'a/b' is not valid"),
        (["arena", "rock", "--configs", "my_games"], "are the same folder"),
        (["arena", "rock", "extra"], "unexpected argument 'extra'"),
    ],
)
def test_a_wrong_name_is_one_line_and_writes_nothing(
    arguments: list[str],
    line: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.py")}
    assert main(["new", *arguments]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*.py")} == before
