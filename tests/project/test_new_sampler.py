"""Tests of the page about a new sampler: the printed code passes its tests and trains."""

import subprocess
import sys
from pathlib import Path

from tests.helpers.command_process import metrics, run
from tests.project.test_documentation import commands, files

PAGE = "new_sampler.md"


def test_the_printed_sampler_passes_its_test_and_trains(tmp_path: Path) -> None:
    printed = files(PAGE)
    assert len(printed) == 3
    for name, text in printed.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    tested, checked, trained, _ = commands(PAGE)
    command = [sys.executable, *tested[1:], "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr
    outcome = run(*checked[1:], cwd=tmp_path)
    assert outcome.code == 0 and "no faults" in outcome.out, outcome.out
    short = ("run.steps=2", "warmstart.steps=20", "evaluations=none", "run.threads=1")
    small = ("sampler.group_size=2", "sampler.size=4", "curriculum.batch=3")
    outcome = run(*trained[1:], *short, *small, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    for row in metrics(tmp_path / "runs/ends")[1:]:
        assert row["episodes/count"] == 3 * 4 and row["sampler/distance"] >= 0


def test_the_page_names_all_that_the_library_reads_from_a_sampler() -> None:
    from selfplay.sampler import Sampler
    from selfplay.sampler.base import GroupSampler
    from tests.helpers.repository import ROOT

    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    named = {*vars(Sampler), *Sampler.__annotations__, *vars(GroupSampler), "group_size"}
    public = {name for name in named if not name.startswith("_")}
    assert len(public) >= 9
    assert not [name for name in public if f"| `{name}" not in text]
