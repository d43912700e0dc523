"""The plan's memory of an update beside that of fake tensors, in one process and on 8 ranks."""

import json
import subprocess
import sys

import pytest

from tests.helpers.repository import ROOT
from tests.helpers.scripts import script

Recipe = script("check_memory").Recipe


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


@pytest.mark.slow
def test_a_recipe_fits_its_gpu() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts/check_memory.py", "--recipes", "gpu_1_lora_7b"],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
    )
    assert ran.returncode == 0 and ran.stdout.endswith("of 80: fits\n"), ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("name", "update", "policies"),
    [
        ("gpu_1_lora_7b", "adapter of rank 16, checkpointed, 1 rank(s)", 1),
        ("gpu_8_full_7b", "all weights, checkpointed, 4 rank(s)", 1),
        ("gpu_8_colocated_7b", "all weights, checkpointed, 8 rank(s)", 1),
        ("gpu_16_two_policies", "all weights, checkpointed, 8 rank(s)", 2),
    ],
)
def test_the_update_of_a_recipe_is_that_of_its_config(
    name: str, update: str, policies: int
) -> None:
    recipe = Recipe.named(name)
    assert (str(recipe.case), recipe.policies, recipe.tokens) == (update, policies, 16384)
    resting = recipe.resting(28) / 1e9
    assert resting == pytest.approx(11.42 if policies > 1 else 0.0, abs=0.01)
