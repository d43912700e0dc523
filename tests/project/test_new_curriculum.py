"""Test of the page about a new curriculum: the printed code passes its tests and trains."""

import subprocess
import sys
from pathlib import Path

from tests.helpers.command_process import metrics, run
from tests.project.test_documentation import commands, files

PAGE = "new_curriculum.md"


def test_the_printed_curriculum_passes_its_test_and_trains(tmp_path: Path) -> None:
    printed = files(PAGE)
    assert len(printed) == 3
    for name, text in printed.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    tested, checked, trained, _ = commands(PAGE)
    command = [sys.executable, *tested[1:], "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    outcome = run(*checked[1:], cwd=tmp_path)
    assert outcome.code == 0 and "no faults" in outcome.out, outcome.out
    short = ("run.steps=2", "warmstart.steps=20", "evaluations=none", "run.threads=1")
    outcome = run(*trained[1:], *short, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    rows = metrics(tmp_path / "runs/growing")
    assert [row["curriculum/largest"] for row in rows[1:]] == [4, 4]
