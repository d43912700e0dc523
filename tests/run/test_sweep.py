"""Tests of sweeps: their runs, their continuation, and the table of their results."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.errors import ConfigError, RunError
from selfplay.run import sweep
from selfplay.run.declarations import ArenaMetrics, RunMetrics, write_declared
from selfplay.run.report import sweep_report
from selfplay.run.sweep import plan
from selfplay.types import Metric
from tests.helpers.command_process import one_line


def test_every_combination_is_a_run_and_the_last_key_changes_fastest() -> None:
    found = plan(["+experiment=tiny/smoke", "credit=trr,grpo", "run.steps=1", "seed=0,1"]).points
    assert [dict(point.choices) for point in found] == [
        {"credit": "trr", "seed": "0"},
        {"credit": "trr", "seed": "1"},
        {"credit": "grpo", "seed": "0"},
        {"credit": "grpo", "seed": "1"},
    ]
    assert found[2].overrides == ("+experiment=tiny/smoke", "run.steps=1", "credit=grpo", "seed=0")
    assert found[2].name == "002-credit_grpo-seed_0"


@pytest.mark.parametrize("key", ["run.name", "run.folder"])
def test_a_sweep_has_only_one_name(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"^-m: {key}=a,b lists several values, and all runs"):
        plan(["seed=0,1", f"{key}=a,b"])
    for command in ("train", "check"):
        assert main([command, "+experiment=tiny/smoke", f"{key}=a,b"]) == 2
        message = one_line(capsys.readouterr().err)
        assert (
            f"{key}=a,b: commas separate the values of a sweep, and a run has one {key}" in message
        )
        assert f"in quotes: '{key}=\"...\"'" in message and "-m" not in message
    quoted = ["+experiment=tiny/smoke", f'{key}="a,b"', "--cfg"]
    assert main(["train", *quoted]) == 0
    assert json.loads(capsys.readouterr().out)["run"][key.partition(".")[2]] == "a,b"
    assert not list(tmp_path.iterdir())


def test_lists_and_ranges_are_read_as_hydra_reads_them() -> None:
    found = plan(
        ["learner.betas=[0.9,0.99]", "seed=range(0,3)", "+experiment=tiny/smoke,tiny/quickstart"]
    ).points
    assert len(found) == 6 and found[0].overrides[0] == "learner.betas=[0.9,0.99]"
    assert found[1].choices == {"seed": "0", "experiment": "tiny/quickstart"}
    assert found[1].overrides[-1] == "+experiment=tiny/quickstart"


def test_a_run_name_contains_no_path_separator() -> None:
    (first, second) = plan(["policy.model=/a/b,../c"]).points
    assert first.name == "000-policy.model__a_b" and "/" not in second.name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [(["seed=1"], "no argument lists several"), (["seed=,"], "cannot read 'seed=,'")],
)
def test_arguments_without_a_sweep_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(overrides)


ACCURACY = Metric(unit="fraction", better="higher")
DECLARED = RunMetrics(evaluations={"e": ArenaMetrics(metrics={"accuracy": ACCURACY})})


class Runs:
    """A stand-in for `subprocess.Popen`: writes a summary, or fails if the seed is in `broken`."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.commands = set(broken), list[list[str]]()

    def __call__(self, command: list[str], **_: Any) -> Any:
        assert command[1] == "-P", "without -P, a file of the current folder could hide a module"
        words = command[command.index("train") + 1 :]
        self.commands.append(words)
        settings = dict(argument.split("=", 1) for argument in words)
        if "resume" in settings:
            place = Path(settings["resume"])
        else:
            place = Path(settings["run.folder"]) / settings["run.name"]
            place.mkdir()
        (place / "config.yaml").write_text("seed: 0\n")
        write_declared(place, DECLARED)
        seed = place.name[-1]
        if seed in self.broken:
            _["stdout"].write("warming up\nselfplay: the loss is nan\n")
            return SimpleNamespace(wait=lambda: 2)
        value = int(seed) / 10 + (0.5 if "grpo" in place.name else 0.0)
        evaluations = {
            "e": {"before": {"accuracy": 0.0}, "after": {"accuracy": value, "x/accuracy": 1}}
        }
        (place / "summary.json").write_text(json.dumps({"evaluations": evaluations}))
        return SimpleNamespace(wait=lambda: 0)


WANTED = plan(["credit=trr,grpo", "seed=0,1"])


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, lines = tmp_path / "sweep", list[str]()
    monkeypatch.setattr(subprocess, "Popen", Runs("1"))
    failed = sweep.run(folder, WANTED, report=lines.append)
    assert failed == ["001-credit_trr-seed_1", "003-credit_grpo-seed_1"]
    assert "run 2 of 4: 001-credit_trr-seed_1 failed: selfplay: the loss is nan" in lines
    again = Runs()
    monkeypatch.setattr(subprocess, "Popen", again)
    assert not sweep.run(folder, WANTED, report=lines.append)
    assert again.commands == [[f"resume={folder / name}"] for name in failed]
    assert sweep.read(folder) == WANTED


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_that_a_signal_ends_says_so_unless_it_had_finished(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(command: list[str], **settings: Any) -> Any:
        process = Runs(*([] if ended else "01"))(command, **settings)
        process.wait = lambda: -signal.SIGTERM
        return process

    lines: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", killed)
    failed = sweep.run(tmp_path / "sweep", WANTED, report=lines.append)
    assert len(failed) == (0 if ended else 4)
    line = "run 2 of 4: 001-credit_trr-seed_1 was ended by SIGTERM"
    assert (line in lines) is not ended


def test_resumed_runs_of_a_sweep_trust_the_modules_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sweep"
    monkeypatch.setattr(subprocess, "Popen", Runs("1"))
    failed = sweep.run(folder, WANTED, trusted=["my_games"])
    commands: list[list[str]] = []

    def again(command: list[str], **_: Any) -> Any:
        commands.append(command[command.index("train") + 1 :])
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", again)
    sweep.run(folder, WANTED, trusted=["my_games"])
    assert commands == [[f"resume={folder / name}", "--trust", "my_games"] for name in failed]


def test_an_interruption_ends_started_runs_and_starts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    launch = subprocess.Popen

    def hang(command: list[str], **_: Any) -> subprocess.Popen[bytes]:
        started.append(launch(["sleep", "600"]))
        return started[-1]

    def report(line: str) -> None:
        if line == "run 2 of 4: 001-credit_trr-seed_1":
            while not started:
                time.sleep(0.01)
            # Python drops a KeyboardInterrupt in a destructor, such as that of an older object.
            while started[0].poll() is None:
                os.kill(os.getpid(), signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    started[0].wait(30)  # a second signal would interrupt the handling of the first

    monkeypatch.setattr(subprocess, "Popen", hang)
    # A worker of pytest-xdist ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sweep.run(tmp_path / "sweep", WANTED, report=report, jobs=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert started and len(started) <= 2
    assert {process.wait(timeout=60) for process in started} == {-signal.SIGTERM}


def test_a_kill_before_the_record_leaves_the_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Runs())
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(os, "fsync", interrupt)
        sweep.run(tmp_path / "sweep", WANTED, report=lambda line: None)
    assert not list(tmp_path.iterdir())
    assert not sweep.run(tmp_path / "sweep", WANTED, report=lambda line: None)


def interrupt(descriptor: int) -> None:
    raise KeyboardInterrupt


def test_another_sweep_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Runs())
    sweep.run(tmp_path / "sweep", WANTED, report=lambda line: None)
    with pytest.raises(RunError, match="another"):
        sweep.run(tmp_path / "sweep", plan(["credit=trr,grpo"]))
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunError, match="is not a sweep"):
        sweep.run(tmp_path / "mine", WANTED)
    with pytest.raises(ConfigError, match="--jobs"):
        sweep.run(tmp_path / "other", WANTED, jobs=0)


def test_the_table_averages_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Runs())
    sweep.run(tmp_path / "s", WANTED, report=lambda line: None, jobs=2)
    trr, grpo = sweep_report.lines(tmp_path / "s")
    assert trr.choices == {"credit": "trr"} and trr.runs == 2 and not trr.missing
    assert trr.values == {"e/accuracy": (0.0, 0.1)}  # task types of an evaluation are not columns
    assert grpo.shown("e/accuracy") == "55.0% \u00b1 7.1%" and grpo.shown("other") == "-"
    table = sweep_report.text([trr, grpo]).splitlines()
    assert table[0].split() == ["credit", "runs", "e,", "accuracy"]
    page = sweep_report.write_ablation(tmp_path / "s").read_text()
    assert "e, accuracy \u2191" in page  # higher is better
    assert "55.0% \u00b1 7.1%" in page and page.count("<svg") == 1 and "<script" not in page


def test_runs_that_did_not_end_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Runs("0", "1"))
    sweep.run(tmp_path / "s", WANTED, report=lambda line: None)
    with pytest.raises(RunError, match="no run of this sweep has ended"):
        sweep_report.lines(tmp_path / "s")
    monkeypatch.setattr(subprocess, "Popen", Runs("1"))
    sweep.run(tmp_path / "s", WANTED, report=lambda line: None)
    lines = sweep_report.lines(tmp_path / "s")
    assert [(line.runs, line.missing) for line in lines] == [(1, 1), (1, 1)]
    assert "1 of 2" in sweep_report.text(lines)


def test_a_damaged_summary_is_one_line_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Runs())
    sweep.run(tmp_path / "s", WANTED, report=lambda line: None)
    summaries = sorted((tmp_path / "s").glob("*/summary.json"))
    summaries[0].write_text("{")
    line = f"eft out a damaged file: {summaries[0].parent.name}/summary.json: not valid JSON"
    table = sweep_report.lines(tmp_path / "s")
    assert sorted((row.runs, row.missing) for row in table) == [(1, 1), (2, 0)]
    assert f"l{line}" in sweep_report.text(table).splitlines()[-1]
    assert f"L{line}" in sweep_report.write_ablation(tmp_path / "s").read_text()
    for each in summaries:
        each.write_text("{")
    with pytest.raises(RunError, match=f"no run of this sweep has a summary to read; l{line}"):
        sweep_report.lines(tmp_path / "s")


def test_without_evaluations_the_last_rewards_are_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Runs())
    sweep.run(tmp_path / "s", plan(["seed=0,1"]), report=lambda line: None)
    for place in (tmp_path / "s").glob("*/"):
        (place / "summary.json").write_text("{}")
        rows = [json.dumps({"step": s, "role/player/reward": float(s)}) for s in range(1, 21)]
        (place / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    (line,) = sweep_report.lines(tmp_path / "s")
    assert line.values == {"role/player/reward": (15.5, 15.5)} and not line.choices


@pytest.mark.parametrize("text", ["", "[]", '{"points": 3}', '{"points": [{}]}', "\x00"])
def test_a_broken_record_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / sweep.FILE).write_text(text)
    with pytest.raises(RunError, match="not the record of a sweep"):
        sweep.read(tmp_path)


def test_the_command_checks_every_point_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing may be started
    assert main(["train", "-m", "+experiment=tiny/smoke", "credit=trr,grop"]) == 2
    assert "did you mean 'grpo'" in capsys.readouterr().err
    assert main(["train", "-m", "--cfg", "+experiment=tiny/smoke", "credit=trr,grpo"]) == 2
    assert "--cfg prints one config; drop -m" in one_line(capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_the_command_runs_reports_and_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Runs("1"))
    (tmp_path / "mine").mkdir()
    made = ["+experiment=tiny/smoke", "credit=trr,grpo", "seed=0,1", "run.name=s"]
    command = ["train", "-m", "--config-dir=mine", *made]
    assert main(command) == 2
    captured = capsys.readouterr()
    page = Path("runs/s/report.html").read_text()
    assert f"selfplay train -m --config-dir=mine {' '.join(made)}" in page
    assert (
        "2 of 4 runs did not finish" in captured.err
        and "report   runs/s/report.html" in captured.out
    )
    monkeypatch.setattr(subprocess, "Popen", Runs())
    assert main(command) == 0 and main(["report", "runs/s"]) == 0
    assert "grpo" in capsys.readouterr().out
