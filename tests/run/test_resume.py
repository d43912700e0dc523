"""Tests of resuming: a run that is killed at any point and resumed equals an uninterrupted one."""

import json
import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from selfplay.cli.main import main
from selfplay.run.report.run_report import write_report
from selfplay.run.sessions import ending, read_sessions
from tests.helpers.command_process import (
    LONGEST,
    SMOKE,
    InjectedFault,
    Outcome,
    assert_alike,
    copy_of_finished,
    finished,
    one_line,
    run,
)

SYNC = "selfplay.learner.checkpoint_writer.sync"

KILLS = {
    "while the first checkpoint is written": InjectedFault(
        at="selfplay.learner.checkpoint_writer.sync", call=3
    ),
    "before the first evaluation": InjectedFault(at="selfplay.train.Trainer.evaluate"),
    "between the metrics of step 0 and the checkpoint": InjectedFault(
        at="selfplay.train.Trainer.save"
    ),
    "between the episodes and the metrics of a step": InjectedFault(
        at="selfplay.run.directory.write_atomic", call=3, after=True
    ),
    "between the metrics of a step and its checkpoint": InjectedFault(
        at="selfplay.train.Trainer.save", call=3
    ),
    "after only a policy of the checkpoint is written": InjectedFault(
        at="selfplay.models.policy.Policy.save", call=3, after=True
    ),
    "before a complete checkpoint is renamed": InjectedFault(
        at="selfplay.learner.checkpoint_writer.Path.rename", call=4
    ),
    "in the middle of an update": InjectedFault(
        at="selfplay.learner.learner.Learner.update", call=2
    ),
    "after the last step and before the summary": InjectedFault(
        at="selfplay.run.directory.Run.write_summary"
    ),
    "after the summary and before the report": InjectedFault(
        at="selfplay.run.report.run_report.write_report"
    ),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "struck"


def train(
    place: Path, injected: InjectedFault | None = None, *, background: bool = True
) -> Outcome:
    """Train; `background` writes checkpoints in a thread, unlike the run of `finished`."""
    kind = f"run.async_checkpoints={background}"
    name = f"run.name={place.name}"
    return run("train", SMOKE, name, kind, cwd=place.parent.parent, injected=injected)


def resume(place: Path, injected: InjectedFault | None = None) -> Outcome:
    return run("train", f"resume=runs/{place.name}", cwd=place.parent.parent, injected=injected)


@pytest.mark.parametrize("when", KILLS)
@pytest.mark.parametrize(
    "background",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["in a thread", "synchronous"],
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(
    background: bool, when: str, place: Path
) -> None:
    finished()  # puts the warm start into the cache
    assert train(place, KILLS[when], background=background).code == -signal.SIGKILL
    outcome = resume(place)
    assert outcome.code == 0, outcome.err
    assert_alike(place, finished())
    assert not list(place.glob("checkpoints/.*")), "a partly written checkpoint is left"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_run_that_another_signal_ended_goes_on(number: signal.Signals, place: Path) -> None:
    finished()
    injected = InjectedFault(at="selfplay.train.Trainer.save", call=3, number=number)
    assert train(place, injected).code == -number
    assert resume(place).code == 0
    assert_alike(place, finished())


def test_a_stopped_and_continued_run_equals_an_uninterrupted_one(place: Path) -> None:
    finished()

    def wake() -> None:
        deadline = time.monotonic() + LONGEST
        while time.monotonic() < deadline:
            for number in _numbers_in(place.parent.parent):
                with suppress(OSError):  # the process may have ended meanwhile
                    if " T " in Path(f"/proc/{number}/stat").read_text():
                        os.kill(number, signal.SIGCONT)
                        return
            time.sleep(0.1)

    waker = threading.Thread(target=wake)
    waker.start()
    injected = InjectedFault(at="selfplay.train.Trainer.save", call=2, number=signal.SIGSTOP)
    assert train(place, injected).code == 0
    waker.join()
    assert_alike(place, finished())


def test_three_resumes_at_once_leave_a_complete_run(place: Path) -> None:
    finished()
    train(place, InjectedFault(at="selfplay.train.Trainer.save", call=2))
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(lambda _: resume(place), range(3)))
    assert 0 in [outcome.code for outcome in outcomes]
    for outcome in outcomes:  # after the end of the first resume, another has nothing to do
        assert outcome.code == 0 or "another process" in one_line(outcome.err)
    assert_alike(place, finished())


def test_a_damaged_metrics_line_is_reported_and_other_lines_stay(place: Path) -> None:
    finished()
    train(place, InjectedFault(at="selfplay.train.Trainer.save", call=4))
    path = place / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{broken\n" + "".join(lines[2:]))
    outcome = resume(place)
    assert outcome.code == 0
    assert "line 2 cannot be read" in outcome.err and "step 1 missing" in outcome.err
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 2, 3]
    assert json.loads((place / "summary.json").read_text())["missing_steps"] == [1]
    assert "no line for these steps" in (place / "report.html").read_text()


def test_a_record_whose_checkpoints_are_gone_is_not_begun_again(place: Path) -> None:
    shutil.copytree(finished(), place)
    shutil.rmtree(place / "checkpoints")
    (place / "checkpoints/000009").mkdir(parents=True)
    before = (place / "metrics.jsonl").read_text()
    outcome = resume(place)
    assert outcome.code == 2
    assert "a record up to step 3 and no checkpoint" in one_line(outcome.err)
    assert (place / "metrics.jsonl").read_text() == before


def test_killed_again_and_again(place: Path) -> None:
    finished()
    train(place, InjectedFault(at="selfplay.train.Trainer.save", call=2))
    for injected in (
        InjectedFault(at="selfplay.train.Trainer.save"),
        InjectedFault(at=SYNC, call=9),
    ):
        assert resume(place, injected).code == -signal.SIGKILL
    assert resume(place).code == 0
    assert_alike(place, finished())


def test_killed_at_any_moment(place: Path) -> None:
    finished()
    delay = random.uniform(0.2, 1.5)
    code = run("train", SMOKE, "run.name=struck", cwd=place.parent.parent, alarm=delay).code
    assert code in (0, -signal.SIGALRM), delay
    if not (place / "config.yaml").is_file():
        assert train(place).code == 0
    else:
        assert resume(place).code == 0, delay
    assert_alike(place, finished())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [SYNC, "selfplay.learner.learner.Learner.update"])
def test_an_interrupt_is_one_line_and_loses_nothing(
    at: str, number: signal.Signals, place: Path
) -> None:
    finished()
    outcome = train(place, InjectedFault(at=at, call=2, number=number))
    assert outcome.code == 130
    assert one_line(outcome.err).startswith("selfplay: interrupted; ")
    assert f"selfplay train resume=runs/{place.name}" in outcome.err
    why = "interrupted by SIGINT (Ctrl-C)" if number == signal.SIGINT else "interrupted by SIGTERM"
    assert ending(place) == why
    assert f"The run stopped early: {why}" in write_report(place).read_text()
    assert resume(place).code == 0
    assert [each.ending for each in read_sessions(place)] == [why, ""]
    assert_alike(place, finished())


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_says_so(place: Path) -> None:
    finished()
    train(place, InjectedFault(at="selfplay.train.Trainer.save"))
    assert "beginning again" in resume(place).err


def test_resuming_a_finished_run_writes_the_same_summary(place: Path) -> None:
    finished()
    assert train(place).code == 0
    before = json.loads((place / "summary.json").read_text())["evaluations"]
    assert resume(place).code == 0
    assert json.loads((place / "summary.json").read_text())["evaluations"] == before
    assert_alike(place, finished())


def test_a_metrics_line_that_was_cut_short_is_written_again(place: Path) -> None:
    finished()
    train(place, InjectedFault(at="selfplay.train.Trainer.save", call=3))
    path = place / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert resume(place).code == 0
    assert_alike(place, finished())


def test_two_processes_cannot_train_one_run(place: Path) -> None:
    finished()
    assert train(place).code == 0
    import fcntl

    with (place / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        outcome = resume(place)
    assert outcome.code == 2
    assert "another process" in one_line(outcome.err)


def test_a_kill_between_the_last_checkpoint_and_the_removal_of_an_older_one(
    tmp_path: Path,
) -> None:
    checkpoints = copy_of_finished(tmp_path) / "checkpoints"
    kept = sorted(path.name for path in checkpoints.iterdir())
    assert "000000" not in kept
    shutil.copytree(checkpoints / kept[-1], checkpoints / "000000")
    assert main(["train", f"resume={checkpoints.parent}"]) == 0
    assert sorted(path.name for path in checkpoints.iterdir()) == kept


def test_no_process_outlives_a_killed_run(place: Path) -> None:
    finished()
    train(place, InjectedFault(at="selfplay.train.Trainer.save", call=3))
    deadline = time.monotonic() + LONGEST
    while (left := _processes_in(place.parent.parent)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def _processes_in(folder: Path) -> list[str]:
    found = []
    for number in _numbers_in(folder):
        with suppress(OSError):
            found.append(Path(f"/proc/{number}/cmdline").read_text())
    return found


def _numbers_in(folder: Path) -> list[int]:
    """Return the ids of the processes whose current folder is `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(entry / "cwd")) == folder:
                found.append(int(entry.name))
    return found
