"""Tests of the activity of a process: its tallies, and the file that shows them."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from selfplay.run.activity import ACTIVITY, FILE, Activity, ActivityFile, Tally
from selfplay.run.metrics import StepTimer


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / FILE).read_text())
    return content


def test_a_tally_states_its_speed_and_the_time_left() -> None:
    tally = Tally("episodes", 10)
    assert tally.words(tally.since + 5) == "0 of 10 episodes"
    tally.add(4, tokens=100)
    assert tally.words(tally.since + 2) == "4 of 10 episodes, 50 tokens/s, 3 s left"
    assert tally.words(tally.since + 0.5) == "4 of 10 episodes"
    tally.add(6)
    assert tally.words(tally.since + 2) == "10 of 10 episodes, 50 tokens/s"


def test_tallies_count_as_long_as_their_work_is_under_way() -> None:
    activity = Activity()
    with activity.counting("episodes", 3) as first, activity.counting("samples", 2):
        first.add(2, tokens=7)
        assert [(t.unit, t.done, t.tokens) for t in activity.tallies()] == [
            ("episodes", 2, 7),
            ("samples", 0, 0),
        ]
    with pytest.raises(ValueError), activity.counting("steps", 1):
        raise ValueError
    assert activity.tallies() == ()


def test_the_file_shows_the_present_work_and_is_removed_at_the_end(tmp_path: Path) -> None:
    activity = Activity()
    with ActivityFile(tmp_path, lambda: {"step": 3}, activity=activity, interval=0.01):
        assert read(tmp_path)["phase"] == "starting"
        activity.begin("rollout")
        with activity.counting("episodes", 8) as tally:
            tally.add(tokens=5)
            end = time.monotonic() + 20
            while (content := read(tmp_path))["tallies"] == [] or not content["tallies"][0]["done"]:
                assert time.monotonic() < end, "the file is not updated"
                time.sleep(0.01)
    assert content["step"] == 3 and content["phase"] == "rollout"
    (found,) = content["tallies"]
    assert (found["unit"], found["done"], found["total"], found["tokens"]) == ("episodes", 1, 8, 5)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_waits_for_work_is_not_touched_without_any(tmp_path: Path) -> None:
    activity, earlier = Activity(), tmp_path / FILE
    earlier.write_text("of another process")
    activity.begin("loading models")
    with ActivityFile(tmp_path, activity=activity, interval=0.01, at_once=False):
        activity.begin("loading models")  # the same phase again
        time.sleep(0.1)
        assert earlier.read_text() == "of another process"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of another process"]


@pytest.mark.parametrize("counted", [True, False])
def test_a_file_that_waits_for_work_is_written_with_the_first(
    tmp_path: Path, counted: bool
) -> None:
    activity = Activity()
    with ActivityFile(tmp_path, activity=activity, interval=0.01, at_once=False):
        with activity.counting("episodes", 8) if counted else nullcontext():
            if not counted:
                activity.begin("playing")
            end = time.monotonic() + 20
            while not (tmp_path / FILE).exists():
                assert time.monotonic() < end, "the file is not written"
                time.sleep(0.01)
        assert read(tmp_path)["phase"] == ("starting" if counted else "playing")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_raises_no_error(tmp_path: Path) -> None:
    with ActivityFile(tmp_path / "missing", interval=0.01):
        time.sleep(0.05)


def test_the_phases_of_a_step_are_those_of_its_timer() -> None:
    clock = StepTimer()
    with clock("rollout"):
        assert ACTIVITY.phase == "rollout"
    with clock("learn"):
        assert ACTIVITY.phase == "learn"
