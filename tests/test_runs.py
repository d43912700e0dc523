"""The run folder: never overwritten, never half written."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.runs import Run, reporting_disk, write_atomic

CONFIG = {"seed": 0, "run": {"name": "x"}}


def recorded(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "runs/mine", CONFIG)
    for step in range(4):
        made.record(step, {"figure": 0.5}, [], [])
        (made.folder / "episodes" / f"{step:06d}.jsonl").write_text("{}\n")
    return made


def test_a_new_run_has_its_config_and_is_not_made_twice(tmp_path: Path, run: Run) -> None:
    assert Run.open(run.folder).config() == CONFIG
    with pytest.raises(RunError, match=r"exists and is never overwritten.*resume="):
        Run.create(run.folder, CONFIG)
    (tmp_path / "other").mkdir()
    with pytest.raises(RunError, match="exists and is no run folder"):
        Run.create(tmp_path / "other", CONFIG)
    assert recorded(run.folder) == [0, 1, 2, 3]


def test_looking_whether_a_run_can_be_made_leaves_nothing(tmp_path: Path) -> None:
    Run.refuse_existing(tmp_path / "a/b/c")
    assert not list(tmp_path.iterdir())


def test_a_place_where_nothing_can_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to .*file/run: Not a directory"):
        Run.refuse_existing(tmp_path / "file/run")


def test_a_run_that_could_not_be_made_leaves_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("selfplay.runs.write_atomic", full)
        with pytest.raises(RunError, match="free some space"):
            Run.create(tmp_path / "mine", CONFIG)
    Run.create(tmp_path / "mine", CONFIG)


def test_a_run_that_another_process_made_meanwhile_is_refused_and_whole(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []

    def once(folder: Path) -> None:
        """The first look comes before the other process is there."""
        looks.append(folder)
        if len(looks) > 1:
            refuse(folder)

    refuse = Run.refuse_existing
    monkeypatch.setattr(Run, "refuse_existing", once)
    with pytest.raises(RunError, match="exists and is never overwritten"):
        Run.create(run.folder, {"seed": 1})
    assert Run.open(run.folder).config() == CONFIG and recorded(run.folder) == [0, 1, 2, 3]
    assert list(run.folder.parent.iterdir()) == [run.folder]


KILLED = """
import os, sys
from pathlib import Path
from selfplay import runs

runs.write_atomic = lambda path, text: os._exit(9)
runs.Run.create(Path(sys.argv[1]), {})
"""


def test_a_kill_while_a_run_is_made_leaves_its_name_free(tmp_path: Path) -> None:
    folder = tmp_path / "runs/mine"
    assert subprocess.run([sys.executable, "-c", KILLED, folder]).returncode == 9
    assert not folder.exists() and len(list(folder.parent.iterdir())) == 1
    assert Run.create(folder, CONFIG).config() == CONFIG


def test_only_a_run_folder_is_opened(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is no run folder \(config.yaml is missing\)"):
        Run.open(tmp_path)


@pytest.mark.parametrize(("step", "left"), [(3, [0, 1, 2, 3]), (1, [0, 1]), (0, [0]), (-1, [])])
def test_rewinding_forgets_what_came_after(step: int, left: list[int], run: Run) -> None:
    for name in ("summary.json", "report.html"):
        (run.folder / name).write_text("old")
    (run.folder / "episodes/notes.jsonl").write_text("a user's own")
    run.rewind(step)
    assert recorded(run.folder) == left
    kept = [*(f"{number:06d}.jsonl" for number in left), "notes.jsonl"]
    assert sorted(path.name for path in (run.folder / "episodes").iterdir()) == kept
    assert not (run.folder / "summary.json").exists()


@pytest.mark.parametrize(
    "tail", [b'{"step": 4, "fig', b'{"step"', b"\x00\x00\xff\xff", b"[]\n", b""]
)
def test_a_last_line_that_is_no_record_is_dropped(tail: bytes, run: Run) -> None:
    path = run.folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + tail)
    run.rewind(9)
    assert recorded(run.folder) == [0, 1, 2, 3]


def test_a_record_without_its_line_end_is_kept_and_ended(run: Run) -> None:
    path = run.folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    run.rewind(9)
    run.record(4, {}, [], [])
    assert recorded(run.folder) == [0, 1, 2, 3, 4]


def test_rewinding_a_run_that_has_recorded_nothing(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "new", CONFIG)
    run.rewind(-1)
    assert not (run.folder / "metrics.jsonl").exists()


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("selfplay.runs.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "choose a folder")]
)
def test_disk_errors_are_one_line_with_the_advice_that_helps(
    number: int, advice: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=advice), reporting_disk(tmp_path):
        raise OSError(number, "whatever the system calls it")
    with pytest.raises(ValueError, match="another"), reporting_disk(tmp_path):
        raise ValueError("another fault")
