"""Tests that the minimal loop learns, and is short and without configs and command line."""

import runpy

from tests.helpers.repository import ROOT

SCRIPT = ROOT / "scripts/minimal_loop.py"


def test_the_minimal_loop_learns() -> None:
    rewards = list(runpy.run_path(str(SCRIPT))["train"]())
    # A policy with random weights rarely names a place (-1 each); agents who always meet get 1.
    assert len(rewards) == 30
    assert rewards[0] < -0.5
    assert min(rewards[-3:]) > 0.9


def test_the_minimal_loop_is_a_page_without_config_and_command_line() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for absent in ("selfplay.cli", "selfplay.config", "selfplay.experiment", "yaml"):
        assert absent not in text
