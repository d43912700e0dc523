"""Tests of states restored from a checkpoint: an error in a user's code is one line."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.credit.rae import RAE
from selfplay.errors import ConfigError, RunError
from selfplay.experiment import experiment as module
from selfplay.experiment.experiment import Experiment


class Forgetful(RAE):
    """A credit method that reads a value that its state lacks."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.means = state["means"]


def restored(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> None:
    """Resume from a checkpoint with empty states; parts that are not given accept them."""
    anything: Any = SimpleNamespace(load_state_dict=lambda state: None, drain=lambda: None)
    experiment = Experiment.__new__(Experiment)
    experiment._batches, experiment.policies, experiment.league = anything, {}, None
    experiment.curriculum, experiment.collapse = parts.get("curriculum", anything), anything
    experiment.credit, experiment.outcomes = parts.get("credit", anything), anything
    state: dict[str, Any] = {"step": 7, "seconds": 2.5, "curriculum": {}, "credit": {}}
    state |= {"collapse": {}, "evaluations_before": None, "evaluations_after": None}
    monkeypatch.setattr(module.checkpoint, "load", lambda *given, **named: state)
    experiment._resume(Path("runs/a/checkpoints/7"), learning=False)
    assert (experiment.step, experiment.seconds_before) == (7, 2.5)


@pytest.mark.parametrize("key", ["curriculum", "credit"])
def test_an_error_of_a_users_part_names_the_part_and_the_line(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        rf"^{key}: Forgetful\.load_state_dict raised KeyError: 'means' "
        r"\(.*test_restored_parts\.py, line \d+\)$"
    )
    with pytest.raises(ConfigError, match=words):
        restored(monkeypatch, **{key: Forgetful()})


def test_a_state_of_another_method_does_not_fit_the_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restored(monkeypatch)
    words = "its state does not fit the config of the run: ValueError: RAE .*; resume from an older"
    with pytest.raises(RunError, match=words):
        restored(monkeypatch, credit=RAE())
