"""Tests of the sessions of a run: the code and the ending of each process, and damaged files."""

import json
import subprocess
from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.run import sessions
from selfplay.run.sessions import (
    MOST_SESSIONS,
    Session,
    begin_session,
    end_session,
    ending,
    read_sessions,
    versions,
)


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.hooksPath=/dev/null")
    made = subprocess.run(
        ["git", "-C", str(folder), *own, *words], capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.py").write_text("1\n")
    (folder / "sessions.py").write_text("2\n")
    git(folder, "add", "a.py", "sessions.py")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_each_process_adds_a_session_with_its_code(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setattr(sessions, "__file__", str(repository / "sessions.py"))
    monkeypatch.chdir(tmp_path)
    assert read_sessions(tmp_path) == []
    first = begin_session(tmp_path)
    assert (first.commit, first.changed, first.project) == (commit, False, "")
    assert first.code == commit[:7] and first.versions == versions()
    (repository / "new.py").write_text("not tracked\n")
    second = begin_session(tmp_path, step=7, settings={"learner.lr": (1e-3, 1e-4)})
    assert not second.changed and read_sessions(tmp_path)[1] == second
    (repository / "a.py").write_text("2\n")
    third = begin_session(tmp_path)
    assert third.changed and third.code == f"{commit[:7]}+"
    assert [each.code for each in read_sessions(tmp_path)] == [first.code, first.code, third.code]


def test_the_project_of_the_user_is_named_and_runs_no_program(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "config", "filter.evil.clean", f"touch {tmp_path}/owned; cat")
    git(repository, "config", "core.fsmonitor", f"touch {tmp_path}/owned")
    (repository / ".gitattributes").write_text("* filter=evil\n")
    (repository / "a.py").write_text("2\n")
    monkeypatch.chdir(repository)
    session = begin_session(tmp_path)
    assert session.project == git(repository, "rev-parse", "HEAD")
    assert not (tmp_path / "owned").exists()


def test_an_environment_inside_another_repository_is_not_its_commit(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = repository / ".venv/lib/selfplay/sessions.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("3\n")
    monkeypatch.setattr(sessions, "__file__", str(installed))
    monkeypatch.chdir(tmp_path)
    session = begin_session(tmp_path)
    assert (session.commit, session.code) == ("", versions()["selfplay"])


def test_without_git_the_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    session = begin_session(tmp_path)
    assert session.commit == "" and session.code == versions()["selfplay"]


@pytest.mark.parametrize(
    "text", ["{", "{}", "[1]", '[{"begun": 3}]', json.dumps([{"begun": "x" * 50}])]
)
def test_a_damaged_file_is_one_line_and_does_not_stop_training(tmp_path: Path, text: str) -> None:
    (tmp_path / "sessions.json").write_text(text)
    with pytest.raises(RunError, match=r"sessions\.json") as error:
        read_sessions(tmp_path)
    assert "\n" not in str(error.value)
    begin_session(tmp_path)
    assert len(read_sessions(tmp_path)) == 1
    assert (tmp_path / "sessions.damaged.json").read_text() == text
    (tmp_path / "sessions.json").write_text("{again")
    begin_session(tmp_path)
    assert (tmp_path / "sessions.damaged.json").read_text() == text
    assert (tmp_path / "sessions.damaged-2.json").read_text() == "{again"


def test_the_error_that_ends_a_process_is_only_in_its_own_session(tmp_path: Path) -> None:
    assert ending(tmp_path) == ""
    end_session(tmp_path, RunError("no session"))
    assert not (tmp_path / "sessions.json").exists()
    begin_session(tmp_path)
    assert ending(tmp_path) == ""
    end_session(tmp_path, RunError("step 1: 50% of the\nepisodes failed"))
    assert ending(tmp_path) == "step 1: 50% of the episodes failed"
    begin_session(tmp_path, step=1)
    assert ending(tmp_path) == "", "the run goes on"
    end_session(tmp_path, ZeroDivisionError("x" * 9000))
    first, second = read_sessions(tmp_path)
    assert first.ending.endswith("failed") and second.step == 1
    assert second.ending.startswith("ZeroDivisionError: xx")


def test_an_interrupt_that_ends_a_process_is_in_its_session(tmp_path: Path) -> None:
    begin_session(tmp_path)
    end_session(tmp_path, KeyboardInterrupt("interrupted by SIGTERM"))
    assert ending(tmp_path) == "interrupted by SIGTERM"


def test_an_error_of_the_run_is_not_hidden_by_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "sessions.json").write_text("{")
    end_session(tmp_path, RunError("the first error"))
    assert ending(tmp_path) == "" and (tmp_path / "sessions.json").read_text() == "{"


def test_the_oldest_sessions_are_left_out(tmp_path: Path) -> None:
    many = [{"begun": str(number)} for number in range(MOST_SESSIONS)]
    (tmp_path / "sessions.json").write_text(json.dumps(many))
    begin_session(tmp_path)
    kept = read_sessions(tmp_path)
    assert len(kept) == MOST_SESSIONS and kept[0] == Session(begun="1")


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    run = tmp_path / "run"
    run.mkdir()
    (run / "sessions.json").symlink_to(outside)
    with pytest.raises(RunError, match="symbolic link"):
        begin_session(run)
    assert outside.read_text() == "kept"
