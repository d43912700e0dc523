"""Tests of the hashes of large files, which are kept in memory."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from selfplay.run import files


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of paths that are read; files of four bytes or more count as large."""
    seen: list[Path] = []
    plain = files.sha256

    def noted(path: Path) -> str:
        seen.append(path)
        return plain(path)

    files._hash_of.cache_clear()
    monkeypatch.setattr(files, "sha256", noted)
    monkeypatch.setattr(files, "LARGE", 4)
    return seen


def old(path: Path, text: str, age: float = 3600.0) -> str:
    """Write a file whose last change was some seconds ago, and return its hash."""
    path.write_text(text)
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_large_file_is_read_once(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED", -1.0)  # the time of the inode's change is now
    wanted = old(tmp_path / "weights", "1234")
    assert [files.sha256_once(tmp_path / "weights") for _ in range(3)] == [wanted] * 3
    assert len(reads) == 1
    small = old(tmp_path / "small", "123")
    assert [files.sha256_once(tmp_path / "small") for _ in range(3)] == [small] * 3
    assert len(reads) == 4


def test_a_changed_file_is_read_again(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED", -1.0)
    weights = tmp_path / "weights"
    old(weights, "1234")
    files.sha256_once(weights)
    times = weights.stat()
    time.sleep(0.02)  # two changes within a tick of the kernel's clock have the same time
    weights.write_text("1235")  # of the same size ...
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # ... and the same time
    assert files.sha256_once(weights) == hashlib.sha256(b"1235").hexdigest()
    assert len(reads) == 2


def test_a_file_that_was_just_written_is_read_each_time(tmp_path: Path, reads: list[Path]) -> None:
    (tmp_path / "weights").write_text("1234")
    for _ in range(3):
        files.sha256_once(tmp_path / "weights")
    assert len(reads) == 3
