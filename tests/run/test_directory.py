"""Tests of the run folder: it is never overwritten and never partly written."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.run.directory import Run, gaps, reporting_disk, write_atomic
from selfplay.run.files import held

CONFIG = {"seed": 0, "run": {"name": "x"}}


def recorded(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "runs/mine", CONFIG)
    for step in range(4):
        made.record(step, {"loss": 0.5}, [], [])
        (made.folder / "episodes" / f"{step:06d}.jsonl").write_text("{}\n")
    return made


def test_a_new_run_has_its_config_and_is_not_made_twice(tmp_path: Path, run: Run) -> None:
    assert Run.open(run.folder).config() == CONFIG
    with pytest.raises(RunError, match=r"exists and is never overwritten.*resume="):
        Run.create(run.folder, CONFIG)
    (tmp_path / "other").mkdir()
    with pytest.raises(RunError, match="exists and is not a run folder"):
        Run.create(tmp_path / "other", CONFIG)
    assert recorded(run.folder) == [0, 1, 2, 3]


def test_checking_for_a_new_run_creates_nothing(tmp_path: Path) -> None:
    Run.check_new(tmp_path / "a/b/c")
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_created_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to .*file/run: Not a directory"):
        Run.check_new(tmp_path / "file/run")


def test_a_run_that_could_not_be_made_leaves_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("selfplay.run.directory.write_atomic", full)
        with pytest.raises(RunError, match="free some space"):
            Run.create(tmp_path / "mine", CONFIG)
    Run.create(tmp_path / "mine", CONFIG)


def test_a_run_that_another_process_made_meanwhile_is_refused_and_whole(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[Path] = []

    def accept_first(folder: Path) -> None:
        """Accept the first check, which comes before the other process creates the run."""
        checks.append(folder)
        if len(checks) > 1:
            refuse(folder)

    refuse = Run.check_new
    monkeypatch.setattr(Run, "check_new", accept_first)
    with pytest.raises(RunError, match="exists and is never overwritten"):
        Run.create(run.folder, {"seed": 1})
    assert Run.open(run.folder).config() == CONFIG and recorded(run.folder) == [0, 1, 2, 3]
    assert list(run.folder.parent.iterdir()) == [run.folder]


KILLED = """
import os, sys
from pathlib import Path
from selfplay.run import directory

directory.write_atomic = lambda path, text: os._exit(9)
directory.Run.create(Path(sys.argv[1]), {})
"""


def test_a_kill_while_a_run_is_made_leaves_its_name_free(tmp_path: Path) -> None:
    folder = tmp_path / "runs/mine"
    assert subprocess.run([sys.executable, "-c", KILLED, folder]).returncode == 9
    assert not folder.exists() and len(list(folder.parent.iterdir())) == 1
    assert Run.create(folder, CONFIG).config() == CONFIG


def test_only_a_run_folder_is_opened(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder \(config.yaml is missing\)"):
        Run.open(tmp_path)


@pytest.mark.parametrize(("step", "left"), [(3, [0, 1, 2, 3]), (1, [0, 1]), (0, [0]), (-1, [])])
def test_rewinding_removes_later_steps(step: int, left: list[int], run: Run) -> None:
    for name in ("summary.json", "report.html"):
        (run.folder / name).write_text("old")
    (run.folder / "episodes/notes.jsonl").write_text("a user's own")
    run.rewind(step)
    assert recorded(run.folder) == left
    kept = [*(f"{number:06d}.jsonl" for number in left), "notes.jsonl"]
    assert sorted(path.name for path in (run.folder / "episodes").iterdir()) == kept
    assert not (run.folder / "summary.json").exists()


@pytest.mark.parametrize(
    "tail", [b'{"step": 4, "los', b'{"step"', b"\x00\x00\xff\xff", b"[]\n", b""]
)
def test_a_last_line_that_is_no_record_is_dropped(tail: bytes, run: Run) -> None:
    path = run.folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + tail)
    run.rewind(9)
    assert recorded(run.folder) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "damage", [b"\n", b"{broken\n", b"[]\n", b'{"step": "x"}\n', b"\xff\xfe\n"]
)
def test_a_damaged_line_removes_no_other_line(damage: bytes, run: Run) -> None:
    path = run.folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    notes = run.rewind(3)
    assert recorded(run.folder) == [0, 1, 2, 3]
    expected = [f"{path}: line 3 cannot be read; left out"] if damage.strip() else []
    assert notes == expected


def test_missing_steps_of_the_record_are_reported(run: Run) -> None:
    path = run.folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[3])
    (note,) = run.rewind(3)
    assert "steps 1 to 2 missing" in note
    assert run.missing(3) == [1, 2]
    path.unlink()
    (note,) = run.rewind(2)
    assert "steps 0 to 2 missing" in note


def test_a_file_of_another_name_among_the_episodes_is_left_alone(run: Run) -> None:
    other = run.folder / "episodes/\u00b2.jsonl"  # a digit, but not a number
    other.touch()
    run.rewind(2)
    assert other.exists()


def test_a_record_without_checkpoints_is_refused(run: Run) -> None:
    with pytest.raises(RunError, match="a record up to step 3 and no checkpoint"):
        run.check_complete()
    run.rewind(0)
    run.check_complete()


def test_remains_of_a_killed_creation_are_removed(tmp_path: Path) -> None:
    dead, alive, other = (tmp_path / name for name in (".a.1.partial", ".b.2.partial", ".c.x"))
    for folder in (dead, alive, other):
        folder.mkdir()
        (folder / ".lock").touch()
        os.utime(folder, (0, 0))
    with held(alive):
        os.utime(alive, (0, 0))
        Run.create(tmp_path / "new", CONFIG)
    assert not dead.exists() and alive.exists() and other.exists()


@pytest.mark.parametrize(
    "name", ["config.yaml", ".lock", "metrics.jsonl", "episodes/000001.jsonl", "studies"]
)
def test_a_link_out_of_a_run_is_refused(name: str, run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text((run.folder / "config.yaml").read_text())
    path = run.folder / name
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    with pytest.raises(RunError, match=f"{path.name} is a link that leads out of the run"):
        Run.open(run.folder)


def test_a_run_may_be_a_link_and_hold_links_into_itself(run: Run, tmp_path: Path) -> None:
    (run.folder / "episodes/newest.jsonl").symlink_to("000003.jsonl")
    (tmp_path / "here").symlink_to(run.folder)
    assert Run.open(tmp_path / "here").config() == CONFIG


def test_a_pipe_in_a_run_is_refused(run: Run) -> None:
    os.mkfifo(run.folder / "episodes/000009.jsonl")
    with pytest.raises(RunError, match="not a regular file"):
        Run.open(run.folder)


def test_an_atomic_write_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / ".page.partial").symlink_to(tmp_path / "outside")
    write_atomic(tmp_path / "page", "new")
    assert (tmp_path / "outside").read_text() == "mine"
    assert (tmp_path / "page").read_text() == "new"


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

    monkeypatch.setattr("selfplay.run.directory.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "choose a writable folder")],
)
def test_disk_errors_are_one_line_with_the_advice_that_helps(
    number: int, advice: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=advice), reporting_disk(tmp_path):
        raise OSError(number, "a message of the system")
    with pytest.raises(ValueError, match="another"), reporting_disk(tmp_path):
        raise ValueError("another fault")


def test_a_full_disk_of_the_cache_gives_advice_about_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RunError) as caught, reporting_disk(tmp_path / "cache/models"):
        raise OSError(errno.ENOSPC, "")
    assert str(caught.value).endswith(
        "; free some space or set SELFPLAY_CACHE, then type the same command"
    )


def test_gaps_between_steps_are_named_also_if_they_are_huge() -> None:
    assert gaps([]) == gaps([0, 1, 2]) == ""
    assert gaps({3: 0, 0: 0, 5: 0}) == "1 to 2, 4"
    assert gaps([1, 10**12]) == f"0, 2 to {10**12 - 1}"
