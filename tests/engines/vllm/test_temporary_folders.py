"""Tests that temporary folders of engines are removed, also those of killed processes."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from selfplay.engines.vllm import core

MAKE = """
import os, sys, tempfile
from pathlib import Path
from selfplay.engines.vllm import core
tempfile.tempdir = sys.argv[1]
child = os.fork()
made = core.folder()
Path(made.name, "config.json").touch()
os.write(1, f"{os.getpid()} {Path(made.name).parent}\\n".encode())  # in one write
if child:
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
sys.stdin.read()
"""
"""A program of two processes with a temporary folder each; the parent waits for its child."""


def test_folders_of_killed_processes_are_removed_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stranger = tmp_path / f"{core.PREFIX}strange"
    stranger.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        made = dict(process.stdout.readline().split() for _ in range(2))
        home = Path(made.pop(str(process.pid)))
        ((killed, gone),) = made.items()
        assert set(tmp_path.iterdir()) == {Path(gone), home, stranger}
        os.kill(int(killed), signal.SIGKILL)
        assert process.stdout.readline() == "ended\n"
        assert Path(gone).is_dir()
        core.remove_abandoned()
        assert set(tmp_path.iterdir()) == {home, stranger}
        assert len([*home.glob("*/config.json")]) == 1
    finally:
        process.communicate()
    assert set(tmp_path.iterdir()) == {stranger}  # a process that ends normally leaves nothing


def test_a_process_has_one_parent_folder_for_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
