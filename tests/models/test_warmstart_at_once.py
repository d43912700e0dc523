"""Tests of two runs that need the same warm start at once: one makes it, the other waits."""

import errno
import json
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import filelock
import pytest

from selfplay.errors import RunError
from selfplay.models import model_cache, partial_training, warmstart
from selfplay.models.training_progress import TrainingProgress
from tests.helpers.command_process import CONTEXT
from tests.models.test_warmstart import parrot, weights

LONG = 120.0
"""Seconds after which a test stops waiting."""
WAITING = "warm start: waiting for another run that makes this warm start"


def make(cache: Path, number: int, hold: bool) -> None:
    """Make the warm start and write its lines; with `hold`, wait at step 3 for the file `go`."""
    os.environ["SELFPLAY_CACHE"] = str(cache / "cache")
    partial_training.INTERVAL, partial_training.LARGEST_FRACTION = 0.0, 1e9
    show = TrainingProgress.show

    def held(self: TrainingProgress, step: int, *values: Any, **settings: Any) -> None:
        if hold and step == 3:
            (cache / "held").touch()
            until((cache / "go").exists)
        show(self, step, *values, **settings)

    TrainingProgress.show = held  # type: ignore[method-assign]

    def report(line: str) -> None:
        with (cache / f"{number}.txt").open("a") as file:
            file.write(line + "\n")

    place = warmstart.make(parrot(steps=5), report)
    (cache / f"{number}.made").write_text(str(place))


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)


def said(folder: Path, number: int) -> list[str]:
    path = folder / f"{number}.txt"
    return path.read_text().splitlines() if path.exists() else []


def two(folder: Path) -> tuple[BaseProcess, BaseProcess]:
    """Start a process that stops in the middle, and another one that waits for it."""
    first = CONTEXT.Process(target=make, args=(folder, 1, True))
    first.start()
    until((folder / "held").exists)
    second = CONTEXT.Process(target=make, args=(folder, 2, False))
    second.start()
    until(lambda: said(folder, 2))
    assert said(folder, 2) == [WAITING]
    return first, second


def end(process: BaseProcess) -> int | None:
    process.join(LONG)
    return process.exitcode


def test_the_second_run_waits_and_uses_the_model_of_the_first(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    (tmp_path / "go").touch()
    assert (end(first), end(second)) == (0, 0)
    place = (tmp_path / "1.made").read_text()
    assert (tmp_path / "2.made").read_text() == place
    assert said(tmp_path, 2) == [WAITING, f"warm start: another run has made it, {place}"]
    assert [str(each) for each in (tmp_path / "cache/warmstart").iterdir()] == [place]


def test_if_the_first_is_killed_the_second_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(tmp_path)
    first.kill()
    assert end(first) != 0 and end(second) == 0
    _, training, continuing, *_ = said(tmp_path, 2)
    assert training.startswith("warm start: training a model of ")
    assert continuing == "warm start: continuing an interrupted one after step 3/5"
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "other"))
    made = Path((tmp_path / "2.made").read_text())
    assert weights(warmstart.make(parrot(steps=5))) == weights(made)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_locks_the_first_that_is_complete_stays(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: filelock.FileLock, **settings: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(filelock.FileLock, "acquire", none)
    train, lines = warmstart.WarmStart.train, list[str]()

    def slow(self: warmstart.WarmStart, *arguments: Any) -> Any:
        monkeypatch.setattr(warmstart.WarmStart, "train", train)
        warmstart.make(parrot())  # another run, which ends first
        return train(self, *arguments)

    monkeypatch.setattr(warmstart.WarmStart, "train", slow)
    place = warmstart.make(parrot(), lines.append)
    assert lines[0] == (
        "warm start: no lock (OSError: [Errno 37] No locks available); another run may make this "
        "warm start too"
    )
    assert [path.name for path in (cache / "warmstart").iterdir()] == [place.name]
    assert json.loads((place / "config.json").read_text())["model_type"] == "qwen3"


def test_a_read_only_cache_is_an_error_only_if_it_lacks_the_model(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = warmstart.make(parrot())

    def refused(self: Path, *arguments: Any, **settings: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.setattr(filelock.FileLock, "acquire", refused)
    assert warmstart.make(parrot()) == place
    with pytest.raises(RunError, match="Read-only file system"):
        warmstart.make(parrot(seed=1))


def test_the_lock_is_free_again_after_an_error(cache: Path) -> None:
    folder = cache / "warmstart/0123"
    with pytest.raises(ZeroDivisionError), model_cache.alone(folder):
        raise ZeroDivisionError
    lines: list[str] = []
    with model_cache.alone(folder, report=lines.append):
        assert not lines
