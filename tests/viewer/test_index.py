"""Tests of the viewer's index: filters, reads of one episode, updates and damaged files."""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfplay.errors import RunError
from selfplay.viewer import episode_list, group_list, usage_index
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.episode_filter import EpisodeFilter, SortOrder
from selfplay.viewer.index import EpisodeIndex
from tests.helpers.viewer_run import episode, five_episodes, write

TABLES = ("steps", "words", *episode_list.NAMES, *group_list.NAMES, *usage_index.NAMES)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return five_episodes(tmp_path / "made")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (EpisodeFilter(), [(2, 1), (2, 2), (2, 3), (1, 1), (1, 2)]),
        (EpisodeFilter(role="judge"), [(2, 1)]),
        (EpisodeFilter(outcome="paid"), [(2, 2), (1, 1)]),
        (EpisodeFilter(role="solver", outcome="unpaid"), [(2, 3), (1, 2)]),
        (EpisodeFilter(invalid=True), [(2, 2)]),
        (EpisodeFilter(status="failed"), [(2, 3)]),
        (EpisodeFilter(step=1), [(1, 1), (1, 2)]),
        (EpisodeFilter(text="alpha"), [(2, 1), (1, 1)]),
        (EpisodeFilter(text="alpha beta"), [(1, 1)]),
        (EpisodeFilter(text="omega"), [(2, 3)]),
        (EpisodeFilter(text='" OR alpha NEAR('), []),
    ],
)
def test_a_filter_finds_exactly_the_matching_episodes(
    made: Path, tmp_path: Path, asked: EpisodeFilter, found: list[tuple[int, int]]
) -> None:
    index = EpisodeIndex(made, tmp_path / "cache")
    assert index.update(60.0) == 0
    rows, total = index.list.find(asked, SortOrder(), 0)
    assert [(row.step, row.line) for row in rows] == found and total == len(found)


def test_an_episode_is_read_from_its_place_in_the_file(made: Path, tmp_path: Path) -> None:
    index = EpisodeIndex(made, tmp_path / "cache")
    index.update(60.0)
    assert index.read(1, 2).episode.turns[0].text == "gamma"
    path = made / "episodes/000001.jsonl"
    path.write_text("x" * path.stat().st_size)  # the index does not know yet
    with pytest.raises(RunError, match="changed since it was indexed"):
        index.read(1, 2)


def test_a_folder_that_may_not_be_read_does_not_look_empty(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    index = EpisodeIndex(made, tmp_path / "cache")
    monkeypatch.setattr(Path, "iterdir", locked)  # a superuser can read locked folders
    with pytest.raises(RunError, match=r"episodes: cannot be read \(Permission denied\)"):
        index.update(60.0)
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    with pytest.raises(RunError, match=r"cannot be read \(Permission denied\)"):
        RunCatalogue([made.parent / "cache"])


def test_a_step_that_is_recorded_again_or_taken_back_is_read_again(
    made: Path, tmp_path: Path
) -> None:
    EpisodeIndex(made, tmp_path / "cache").update(60.0)
    (made / "episodes/000001.jsonl").unlink()
    write(made, 2, [episode("epsilon", 2.0)])
    again = EpisodeIndex(made, tmp_path / "cache")
    again.update(60.0)
    rows, total = again.list.find(EpisodeFilter(), SortOrder(), 0)
    assert total == 1 and rows[0].rewards == {"solver_0": 2.0}
    assert again.list.find(EpisodeFilter(text="alpha"), SortOrder(), 0)[1] == 0
    assert again.list.find(EpisodeFilter(text="epsilon"), SortOrder(), 0)[1] == 1


def test_steps_beyond_the_time_limit_are_counted_and_read_later(made: Path, tmp_path: Path) -> None:
    index = EpisodeIndex(made, tmp_path / "cache")
    assert (
        index.update(0.0) == 1 and index.list.find(EpisodeFilter(), SortOrder(), 0)[1] == 3
    )  # the newest step is read first
    index.update_in_background()
    assert index._reader is not None
    index._reader.join(20)
    assert index.list.find(EpisodeFilter(), SortOrder(), 0)[1] == 5 and index.update(0.0) == 0


def test_a_line_that_is_no_episode_is_listed_and_a_last_half_line_is_not(
    made: Path, tmp_path: Path
) -> None:
    with (made / "episodes/000002.jsonl").open("a") as file:
        file.write('{"group": 1}\n{"episode": {"arena"')
    index = EpisodeIndex(made, tmp_path / "cache")
    index.update(60.0)
    assert index.list.find(EpisodeFilter(), SortOrder(), 0)[1] == 6
    (row,) = index.list.find(EpisodeFilter(status="unreadable"), SortOrder(), 0)[0]
    with pytest.raises(RunError, match="line 4: not a recorded episode"):
        index.read(row.step, row.line)


def contents(index: EpisodeIndex) -> object:
    """Update the index; return its tables and indexes, row counts, and the episodes with a word."""
    index.update(60.0)
    names = [name for (name,) in index.base.execute("SELECT name FROM sqlite_master ORDER BY name")]
    counts = [index.base.execute(f"SELECT count(*) FROM {name}").fetchone() for name in TABLES]
    return names, counts, index.list.find(EpisodeFilter(text="alpha"), SortOrder(), 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:50],
        lambda data: data[:4096],
        lambda data: data[: len(data) // 2],
        lambda data: b"no database at all" * 100,
        lambda data: b"",
    ],
)
def test_a_damaged_index_is_rebuilt_from_the_records(
    made: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    records = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    index = EpisodeIndex(made, tmp_path / "cache")
    before = contents(index)
    index.close()
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    again = EpisodeIndex(made, tmp_path / "cache")
    assert contents(again) == before
    again.close()
    (file,) = (tmp_path / "cache").iterdir()  # the damaged file is gone
    third = EpisodeIndex(made, tmp_path / "cache")
    assert third.list.find(EpisodeFilter(), SortOrder(), 0)[1] == 5  # found again, not rebuilt
    assert records == {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}


def test_a_viewer_that_has_the_damaged_index_open_does_not_harm_the_new_one(
    made: Path, tmp_path: Path
) -> None:
    first, second = (EpisodeIndex(made, tmp_path / "cache") for _ in range(2))
    first.update(60.0)
    second.rebuild()
    second.update(60.0)
    first.rebuild()  # it opens the new index of `second`
    assert first.base.execute("PRAGMA database_list").fetchall() == (
        second.base.execute("PRAGMA database_list").fetchall()
    )
    assert contents(first) == contents(second)


def test_a_rebuild_during_an_update_leaves_no_step_out(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, read = EpisodeIndex(made, tmp_path / "cache"), EpisodeIndex._read
    os.utime(made / "episodes", (1e9, 1e9))  # the index trusts old times

    def rebuilt(self: EpisodeIndex, step: int) -> None:
        monkeypatch.undo()
        read(self, step)
        self.rebuild()

    monkeypatch.setattr(EpisodeIndex, "_read", rebuilt)
    assert index.update(60.0) == 2 and index.update(60.0) == 0
    assert index.list.find(EpisodeFilter(), SortOrder(), 0)[1] == 5


def test_the_users_own_index_with_another_mode_is_opened(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = EpisodeIndex(made, tmp_path / "cache")
    before = contents(index)
    index.close()
    (file,) = (tmp_path / "cache").iterdir()
    file.chmod(0)
    opened = os.open

    def locked(path: Path, *flags: int, **more: Any) -> int:  # a superuser can open locked files
        if path == file and not file.stat().st_mode & 0o200:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *flags, **more)

    monkeypatch.setattr("selfplay.viewer.index_files.os.open", locked)
    assert contents(EpisodeIndex(made, tmp_path / "cache")) == before


def test_another_viewer_that_makes_the_index_is_waited_for(made: Path, tmp_path: Path) -> None:
    name = hashlib.sha256(str(made.resolve()).encode()).hexdigest()[:24]
    first = sqlite3.connect(
        tmp_path / f"{name}.sqlite", isolation_level=None, check_same_thread=False
    )
    first.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, first.rollback).start()
    assert EpisodeIndex(made, tmp_path).update(60.0) == 0


def test_several_viewers_may_index_one_run_at_once(made: Path, tmp_path: Path) -> None:
    faults: list[BaseException] = []

    def opened() -> None:
        try:
            index = EpisodeIndex(made, tmp_path / "cache")
            index.update(60.0)
            assert index.list.find(EpisodeFilter(), SortOrder(), 0)[1] == 5
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=opened) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []


def test_runs_of_one_name_and_of_a_sweep_get_distinct_names(tmp_path: Path) -> None:
    for place in ("a/same", "b/same", "a/sweep/one"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.yaml").write_text("seed: 0\n")
    (tmp_path / "a/sweep/sweep.json").write_text("{}")
    catalogue = RunCatalogue([tmp_path / "a", tmp_path / "b"])
    assert sorted(run.name for run in catalogue.runs()) == ["one", "same", "same~2"]
    named = {run.name: run.folder for run in catalogue.runs()}
    newest = tmp_path / "a/sweep/same/config.yaml"
    newest.parent.mkdir()
    newest.write_text("seed: 0\n")
    os.utime(newest, (4e9, 4e9))
    # An open page keeps showing the same run, because names do not move to other folders.
    again = {run.name: run.folder for run in catalogue.runs()}
    assert again == {**named, "same~3": newest.parent} and next(iter(again)) == "same~3"
