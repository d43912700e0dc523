"""Tests of the error for a folder that is not a run: it names the run that may be meant."""

from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.run.directory import Run
from selfplay.run.run_folder import check_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("runs/kuhn", "runs/leduc", "runs/sweep/000-seed_0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("{}")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "hint"),
    [
        ("kuhn", "; did you mean runs/kuhn?"),
        ("runs/khun", "; did you mean runs/kuhn?"),
        ("elsewhere/leduk", "; did you mean runs/leduc?"),
        ("runs", ", but a folder of runs; name one, such as runs/kuhn"),
        ("runs/sweep", ", but a folder of runs; name one, such as runs/sweep/000-seed_0"),
        ("empty", "; name one that training made, such as runs/kuhn"),
    ],
)
def test_a_run_that_may_be_meant_is_named(folder: str, hint: str, here: Path) -> None:
    with pytest.raises(RunError) as caught:
        check_run(Path(folder))
    assert str(caught.value) == f"{folder} is not a run folder (config.yaml is missing){hint}"


def test_without_any_run_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"; name one that training made$"):
        check_run(tmp_path / "nothing")


def test_the_newest_checkpoint_is_that_of_the_largest_step(here: Path) -> None:
    run = Run(here / "runs/kuhn")
    assert run.newest_checkpoint() is None
    for name in ("000000", "000020", "1000000", ".000030.partial", "000040x", "2000000\u0663"):
        (run.folder / "checkpoints" / name).mkdir(parents=True)
    assert run.newest_checkpoint() == 1_000_000
