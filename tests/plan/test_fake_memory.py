"""The plan's memory of an update beside that of fake tensors, in one process and on 8 ranks."""

import json
import subprocess
import sys

import pytest

from tests.helpers.repository import ROOT


@pytest.mark.slow
def test_the_plan_is_within_a_tenth_of_fake_tensors() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts/check_memory.py", "--layers", "4", "--json"],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
    )
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert len(rows) == 8 and ran.returncode == 0, ran.stdout + ran.stderr
    for name, fake, plan in rows:
        assert plan == pytest.approx(fake, rel=0.1), name
