"""Tests of runs that are begun and continued from Python."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import selfplay
from selfplay.errors import ConfigError, RunError
from selfplay.train import Trainer
from tests.helpers.command_process import metrics, shared_cache

KUHN = (
    "+experiment=tiny/kuhn",
    "warmstart.steps=2",
    "warmstart.model={hidden: 16, layers: 1, heads: 2, intermediate: 32}",
    "sampler.group_size=4",
    "evaluations=none",
    "run.threads=1",
    "run.checkpoint_every=1",
    "run.name=kuhn",
)


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that a run makes to this process."""
    path, environment = sys.path[:], dict(os.environ)
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))
    yield
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)


def small(folder: Path, *words: str) -> list[str]:
    return [*KUHN, f"run.folder={folder}", *words]


def steps(run: Path) -> list[int]:
    return [line["step"] for line in metrics(run)]


def test_a_run_is_begun_and_continued(tmp_path: Path) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run = selfplay.start_run(small(tmp_path, "run.steps=1"))
    assert run == tmp_path / "kuhn"
    assert selfplay.resume_run(run, ["run.steps=3"]) == run
    # The same files as after `selfplay train`.
    assert {"summary.json", "sessions.json", "report.html"} <= {each.name for each in run.iterdir()}
    assert steps(run) == [0, 1, 2, 3]
    assert json.loads((run / "summary.json").read_text())["steps"] == 3
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_an_interrupted_run_can_be_continued_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Trainer.run

    def interrupted(self: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        whole(self)

    monkeypatch.setattr(Trainer, "run", interrupted)
    with pytest.raises(
        KeyboardInterrupt
    ) as caught:  # `caught` keeps the frames, as a notebook does
        selfplay.start_run(small(tmp_path, "run.steps=2"))
    folder = tmp_path / "kuhn"
    assert f"selfplay train resume={folder}" in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))
    assert steps(selfplay.resume_run(folder)) == [0, 1, 2]


def test_mistakes_raise_errors_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        selfplay.start_run(small(tmp_path, "sed=1"))
    with pytest.raises(ConfigError, match="cannot read '--multirun'"):
        selfplay.start_run(["--multirun"])
    with pytest.raises(RunError, match="not a run folder"):
        selfplay.resume_run(tmp_path)


def test_code_of_other_packages_needs_trust(tmp_path: Path) -> None:
    run = selfplay.start_run(small(tmp_path, "run.steps=1"))
    config = run / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("roles.player.Player", "strange_package.Player"))
    with pytest.raises(ConfigError, match="'strange_package', not trusted here"):
        selfplay.resume_run(run, ["run.steps=2"])
    with pytest.raises(ConfigError, match="strange_package"):  # now it is looked for
        selfplay.resume_run(run, ["run.steps=2"], trust=["strange_package"])


def test_a_step_is_refused_with_the_way_to_continue_from_it(tmp_path: Path) -> None:
    run = selfplay.start_run(small(tmp_path, "run.steps=2"))
    with pytest.raises(RunError, match=r"to continue from step 1, copy the folder \S+/kuhn, and"):
        selfplay.resume_run(f"{run}@1")
    for newer in (run / "checkpoints").glob("000002*"):  # as the error says
        newer.rename(tmp_path / newer.name)
    assert steps(selfplay.resume_run(run, ["run.steps=3"])) == [0, 1, 2, 3]
