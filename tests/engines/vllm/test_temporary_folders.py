"""Temporary folders of engines are removed by their process, or by the next one after a kill."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from selfplay.engines.vllm import core

MAKE = """
import sys, tempfile
from pathlib import Path
from selfplay.engines.vllm import core
tempfile.tempdir = sys.argv[1]
made = core.folder()
Path(made.name, "config.json").touch()
print(flush=True)
sys.stdin.readline()
"""


def started(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process with a temporary folder; return it and the folder."""
    before = set(folder.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "\n"
    (home,) = set(folder.iterdir()) - before
    return process, home


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (killed, gone), (other, home) = started(tmp_path), started(tmp_path)
    stranger = tmp_path / f"{core.PREFIX}strange"
    stranger.mkdir()
    try:
        killed.kill()
        killed.communicate()
        assert gone.is_dir()
        core.remove_abandoned()
        assert set(tmp_path.iterdir()) == {home, stranger}
        assert len([*home.glob("*/config.json")]) == 1
    finally:
        other.communicate("\n")
    assert set(tmp_path.iterdir()) == {stranger}  # a process that ends normally leaves nothing


def test_a_process_has_its_folders_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    core._home.cache_clear()
    try:
        first, second = core.folder(), core.folder()
        (home,) = tmp_path.iterdir()
        assert {Path(each.name).parent for each in (first, second)} == {home}
        first.cleanup()
        assert not Path(first.name).exists() and Path(second.name).is_dir()
    finally:
        _, lock = core._home(os.getpid())
        lock.close()
        core._home.cache_clear()
