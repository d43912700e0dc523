"""Tests of studies that a page measures again: accepted commands, and their processes."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.errors import RunError
from selfplay.run.activity import Activity, ActivityFile, study_file
from selfplay.viewer import study_runner
from selfplay.viewer.catalog import ListedRun, RunCatalogue
from selfplay.viewer.server import application
from selfplay.viewer.study_runner import StudyRunner, repeated
from tests.helpers.viewer_run import five_episodes

LONGEST = 120.0
"""Seconds after which a study counts as hanging."""
LANGUAGE = "selfplay study language made"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    run = five_episodes(tmp_path / "made")
    (run / "studies").mkdir()
    return run


@pytest.fixture
def client(made: Path, tmp_path: Path) -> Iterator[TestClient]:
    app = application(RunCatalogue([made]), cache=tmp_path / "cache")
    with TestClient(app, base_url="http://127.0.0.1") as opened:
        yield opened


def study(run: Path, measure: str, command: str) -> None:
    data = {"measure": measure, "title": f"Earlier {measure}", "command": command}
    (run / "studies" / f"{measure}.json").write_text(json.dumps(data))


def script(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Put a script in place of the interpreter that runs `selfplay`."""
    made = folder / "interpreter"
    made.write_text(f"#!{sys.executable}\n{text}\n")
    made.chmod(0o755)
    monkeypatch.setattr(study_runner.sys, "executable", str(made))


def wait(runner: StudyRunner, run: ListedRun, measure: str) -> None:
    end = time.monotonic() + LONGEST
    while runner.is_running(run, measure):
        assert time.monotonic() < end, "the study has not ended"
        time.sleep(0.05)


def test_the_run_of_the_page_replaces_the_run_in_the_command(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ListedRun(name="made", folder=made)
    here = str(made.resolve())
    assert repeated(run, "dynamics", "selfplay study dynamics /etc") == ["study", "dynamics", here]
    assert repeated(run, "passk", "selfplay study passk runs/x@20 --samples 4 --role a") == [
        *("study", "passk", f"{here}@20", "--samples", "4", "--role", "a")
    ]
    assert repeated(run, "passk", "selfplay study passk x@start")[-1] == f"{here}@start"
    names = ("--only", "evaluation/test/accuracy", "--metric", "return/player_0")
    wide = ("--derive", "gap=role/a/reward - role/b/reward")
    command = shlex.join(["selfplay", "study", "metrics", "x", *names, *wide])
    assert repeated(run, "metrics", command) == ["study", "metrics", here, *names, *wide]
    monkeypatch.chdir(made.parent)
    assert repeated(run, "language", LANGUAGE)[-1] == "./made"


def test_a_study_has_a_lower_priority_and_begins_without_python_after_the_fork(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python code after a fork could wait for a lock of another thread; the viewer would hang."""
    begun: list[dict[str, Any]] = []
    popen = subprocess.Popen

    def recorded(*words: Any, **settings: Any) -> Any:
        begun.append(settings)
        return popen(*words, **settings)

    monkeypatch.setattr(study_runner.subprocess, "Popen", recorded)
    priority = tmp_path / "priority"
    script(
        monkeypatch,
        tmp_path,
        "import os, time\ntime.sleep(1)\n"
        f"open({str(priority)!r}, 'w').write(str(os.getpriority(os.PRIO_PROCESS, 0)))",
    )
    runner, run = StudyRunner(), ListedRun(name="made", folder=made)
    runner.begin(run, "language", LANGUAGE)
    wait(runner, run, "language")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert int(priority.read_text()) == min(own + study_runner.NICENESS, 19)
    (settings,) = begun
    assert "preexec_fn" not in settings


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "names? no|does not name"),
        ("rm -rf /", "does not name"),
        ("selfplay study other made", "does not name"),
        ("selfplay study dynamics", "does not name"),
        ("selfplay study dynamics 'made", "does not name"),
        ("selfplay study dynamics made other", "several players"),
        ("selfplay study compare dynamics a=x b=y", "several players"),
        ("selfplay study dynamics made --trust os", "--trust"),
        ("selfplay study dynamics made --trust=os", "--trust"),
        ("selfplay study dynamics made --out /tmp", "--out"),
        ("selfplay study dynamics made --set 'hydra.searchpath=[pkg://this]'", "--set"),
        ("selfplay study dynamics made --text /etc/shadow", "--text"),
        ("selfplay study dynamics made --role /etc/shadow", "other files"),
        ("selfplay study dynamics made --episodes 2 other", "other files"),
        ("selfplay study dynamics made --episodes=2 other", "other files"),
        ("selfplay study dynamics made " + "--set a=1 " * 100, "does not name"),
    ],
)
def test_other_commands_are_refused(made: Path, command: str, words: str) -> None:
    with pytest.raises(RunError, match=words):
        repeated(ListedRun(name="made", folder=made), "dynamics", command)


def test_a_study_is_measured_again_by_a_form_of_its_page(made: Path, client: TestClient) -> None:
    study(made, "language", LANGUAGE)
    place = "/run/made/studies/language"
    page = client.get(place).text
    assert "Earlier language" in page and "Measure again" in page
    assert client.post(f"{place}/again", data={"form": "guess"}).status_code == 403
    (secret,) = set(re.findall(r'name="form" value="([^"]+)"', page))
    opened = client.post(f"{place}/again", data={"form": secret})
    assert opened.url.path == place and "Stop measuring" in opened.text
    end = time.monotonic() + LONGEST
    while "Stop measuring" in (page := client.get(place).text):
        assert time.monotonic() < end, "the study has not ended"
        time.sleep(0.1)
    assert "Earlier language" not in page and "Measure again" in page
    written = json.loads((made / "studies/language.json").read_text())
    assert written["tables"] and written["command"].startswith("selfplay study language ")


def test_a_study_that_fails_shows_its_error_and_keeps_the_earlier_result(
    made: Path, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, tmp_path, "import sys; sys.exit('selfplay: <b>no</b> checkpoint')")
    study(made, "language", LANGUAGE)
    run, place = ListedRun(name="made", folder=made), "/run/made/studies/language"
    (secret,) = set(re.findall(r'name="form" value="([^"]+)"', client.get(place).text))
    client.post(f"{place}/again", data={"form": secret})
    end = time.monotonic() + LONGEST
    while "failed" not in (page := client.get(place).text):
        assert time.monotonic() < end, "no error is shown"
        time.sleep(0.05)
    assert "The latest attempt failed: selfplay: &lt;b&gt;no&lt;/b&gt; checkpoint" in page
    assert "Earlier language" in page
    assert repeated(run, "language", LANGUAGE)  # it can be tried again


def test_one_study_at_a_time_and_a_stop_ends_its_process(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, tmp_path, "import time; time.sleep(1000)")
    run, runner = ListedRun(name="made", folder=made), StudyRunner()
    try:
        runner.begin(run, "language", LANGUAGE)
        assert runner.is_running(run, "language") and not runner.is_running(run, "other")
        with pytest.raises(RunError, match="language of made is being measured"):
            runner.begin(run, "passk", "selfplay study passk made")
        runner.stop(run, "passk")  # the study that is running has another name
        process: Any = runner._now.process  # type: ignore[union-attr]
        assert process.poll() is None
        runner.stop(run, "language")
        assert process.returncode is not None and not runner.is_running(run, "language")
        runner.begin(run, "language", LANGUAGE)  # another study can begin
    finally:
        runner.close()


def test_a_link_out_of_the_run_is_refused(made: Path, tmp_path: Path) -> None:
    (made / "studies").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (made / "studies").symlink_to(tmp_path / "elsewhere")
    runner = StudyRunner()
    with pytest.raises(RunError, match="leads out of the run"):
        runner.begin(ListedRun(name="made", folder=made), "language", LANGUAGE)


def test_the_progress_of_a_study_is_shown_while_its_process_writes(
    made: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(made, "passk", "selfplay study passk made")
    activity, place = Activity(), "/run/made/studies/passk"
    activity.begin("playing, cell 2")
    name = study_file("passk")
    with (
        ActivityFile(made / "studies", name=name, activity=activity),
        activity.counting("episodes", 600) as tally,
    ):
        tally.add(100)
        end = time.monotonic() + LONGEST
        while "100 of 600 episodes" not in (part := client.get(f"{place}/progress").text):
            assert time.monotonic() < end, "no progress is shown"
            time.sleep(0.05)
        assert "playing, cell 2" in part and "step 0 of" not in part
        assert "playing, cell 2" in client.get(place).text
        monkeypatch.setattr("selfplay.viewer.live_progress.SILENCE", -1.0)
        assert client.get(f"{place}/progress").text == ""
    assert not (made / "studies" / name).exists()
