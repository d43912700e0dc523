"""Tests of reading and writing in an untrusted folder."""

import os
import socket
from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.run.untrusted import check_inside, is_confined, open_regular, write_text_confined


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_a_regular_file_is_read(run: Path) -> None:
    (run / "a").write_bytes(b"text")
    with open_regular(run / "a", root=run) as file:
        assert file.read() == b"text"


def test_a_missing_file_is_an_ordinary_error(run: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(run / "none", root=run)


def test_a_pipe_is_not_opened(run: Path) -> None:
    os.mkfifo(run / "pipe")
    with pytest.raises(RunError, match="is a pipe, not a regular file"):
        open_regular(run / "pipe")


def test_a_link_to_a_pipe_is_not_opened(run: Path) -> None:
    os.mkfifo(run / "pipe")
    (run / "link").symlink_to("pipe")
    with pytest.raises(RunError, match="is a pipe"):
        open_regular(run / "link", root=run)


@pytest.mark.parametrize("name", ["/dev/null", "/dev"])
def test_devices_and_folders_are_not_opened(name: str) -> None:
    with pytest.raises(RunError, match="not a regular file"):
        open_regular(Path(name))


def test_a_socket_is_not_opened(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)  # the path of a socket has to be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(RunError, match="is a socket"):
            open_regular(Path("s"))


def test_a_link_inside_the_folder_is_followed_and_one_out_of_it_is_not(run: Path) -> None:
    (run / "a").write_bytes(b"inside")
    (run / "near").symlink_to("a")
    (run.parent / "secret").write_bytes(b"outside")
    (run / "far").symlink_to(run.parent / "secret")
    with open_regular(run / "near", root=run) as file:
        assert file.read() == b"inside"
    with pytest.raises(RunError, match="leads out of"):
        open_regular(run / "far", root=run)


def test_paths_inside_a_folder_are_confined(run: Path) -> None:
    (run / "loop").symlink_to("loop")
    (run / "up").symlink_to("..")
    (run.parent / "alias").symlink_to(run)
    (run.parent / "run2").mkdir()
    assert is_confined(run, run)
    assert is_confined(run, run / "new" / "file")
    assert is_confined(run.parent / "alias", run / "a")
    assert is_confined(run, run.parent / "alias" / "a")
    assert not is_confined(run, run / ".." / "x")
    assert not is_confined(run, run / "up" / "x")
    assert not is_confined(run, run.parent / "run2")
    assert not is_confined(run, run / "a\0b")
    assert is_confined(run, run / "loop")  # a link to itself does not lead out


def test_a_file_is_written_whole(run: Path) -> None:
    assert write_text_confined(run, run / "a", "one\r\n\ud800") == run / "a"
    write_text_confined(run, run / "a", "two\n")
    assert (run / "a").read_bytes() == b"two\n"
    assert [each.name for each in run.iterdir()] == ["a"]


def test_a_file_written_has_the_usual_mode(run: Path) -> None:
    (run / "usual").write_text("")
    write_text_confined(run, run / "a", "")
    assert (run / "a").stat().st_mode == (run / "usual").stat().st_mode


@pytest.mark.parametrize("target", ["outside", "run/inside", "nothing"])
def test_nothing_is_written_through_a_link(run: Path, target: str) -> None:
    (run.parent / "outside").write_text("mine")
    (run / "inside").write_text("mine")
    (run / "report.html").symlink_to(run.parent / target)
    with pytest.raises(RunError, match="is a symbolic link"):
        write_text_confined(run, run / "report.html", "theirs")
    assert (run.parent / "outside").read_text() == (run / "inside").read_text() == "mine"
    assert not (run.parent / "nothing").exists()


def test_nothing_is_written_into_a_folder_that_leads_out(run: Path) -> None:
    (run.parent / "elsewhere").mkdir()
    (run / "study").symlink_to(run.parent / "elsewhere")
    with pytest.raises(RunError, match="leads out of"):
        write_text_confined(run, run / "study" / "a.html", "theirs")
    assert not list((run.parent / "elsewhere").iterdir())


def test_links_under_names_of_drafts_are_not_followed(run: Path) -> None:
    (run.parent / "outside").write_text("mine")
    for name in ("a.part", ".a.partial"):
        (run / name).symlink_to(run.parent / "outside")
    write_text_confined(run, run / "a", "text")
    assert (run.parent / "outside").read_text() == "mine"


def test_drafts_that_a_kill_left_are_removed(run: Path) -> None:
    (run.parent / "outside").write_text("mine")
    old, fresh, link = (f".a.{digit * 16}.partial" for digit in "0af")
    for name in (old, fresh, f".b.{'0' * 16}.partial", ".a.partial"):
        (run / name).write_text("half")
        if name != fresh:  # another process may still write `fresh`
            os.utime(run / name, (0, 0))
    (run / link).symlink_to(run.parent / "outside")
    write_text_confined(run, run / "a", "text")
    assert {each.name for each in run.iterdir()} == {
        *("a", fresh, link, ".a.partial"),
        f".b.{'0' * 16}.partial",
    }
    assert (run.parent / "outside").read_text() == "mine"


def test_nothing_is_written_over_a_pipe_or_a_folder(run: Path) -> None:
    os.mkfifo(run / "pipe")
    (run / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(RunError, match="not a regular file"):
            check_inside(run, run / name)
    with pytest.raises(RunError, match="leads out of"):
        check_inside(run, run)
