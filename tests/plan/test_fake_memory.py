"""Tests of the planned memory of an update, compared with that of fake tensors."""

import json
import subprocess
import sys

import pytest

from tests.helpers.repository import ROOT


def check_memory(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts/check_memory.py", *options],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_the_plan_is_within_a_tenth_of_fake_tensors() -> None:
    ran = check_memory("--layers", "4", "--json")
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert len(rows) == 10 and ran.returncode == 0, ran.stdout + ran.stderr
    for name, fake, plan in rows:
        assert plan == pytest.approx(fake, rel=0.1), name


@pytest.mark.slow
def test_the_recipes_fit_by_fake_tensors_and_by_the_plan() -> None:
    ran = check_memory("--recipes")
    lines = ran.stdout.splitlines()
    assert len(lines) == len([*(ROOT / "configs/recipe").glob("*.yaml")])
    assert ran.returncode == 0 and all(line.endswith(": fits") for line in lines), ran.stdout
