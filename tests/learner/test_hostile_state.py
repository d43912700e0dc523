"""Tests that an altered state of a learner or run is refused when it is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.errors import RunError
from selfplay.learner.checkpoint import read_state
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from tests.helpers.builders import llama, sample

STATE: dict[str, Any] = {
    "step": 4,
    "versions": {"base": 4},
    "seconds": 1.5,
    "evaluations_before": None,
    "evaluations_after": {"held_out": {"accuracy": 0.5}},
}


def learner() -> Learner:
    objective = PolicyLoss(
        ratio="none", clip="none", aggregate="token_mean", kl=0.1, estimator="k2", reference="ema"
    )
    reference = llama()
    return Learner(
        llama(), objective=objective, settings=LearnerSettings(lr=1e-2), reference=reference
    )


def test_averages_of_another_shape_are_refused_when_they_are_loaded() -> None:
    """Check averages that torch loads without an error, to fail in the next optimizer step."""
    trained = learner()
    trained.update([sample([1, 2], [3, 4], 1.0)], step=1)
    state = trained.state_dict()
    learner().load_state_dict(state)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"exp_avg has the shape \[3\], and its weight \["):
        learner().load_state_dict(state)


def test_an_ema_of_another_shape_and_an_invalid_count_are_refused() -> None:
    state = learner().state_dict()
    name = next(iter(state["ema"]))
    with pytest.raises(ValueError, match=r"^the EMA: "):
        learner().load_state_dict({**state, "ema": {**state["ema"], name: torch.zeros(3)}})
    with pytest.raises(TypeError):
        learner().load_state_dict({**state, "steps": "x"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -5),
        ("step", "4"),
        ("step", True),
        ("versions", {"base": None}),
        ("seconds", "x"),
        ("seconds", -1),
        ("evaluations_before", {"a": 5}),
        ("evaluations_after", {"a": {"b": []}}),
    ],
)
def test_a_state_with_an_invalid_value_is_a_one_line_error(
    tmp_path: Path, key: str, value: Any
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(STATE))
    assert read_state(tmp_path) == STATE
    path.write_text(json.dumps({**STATE, key: value}))
    with pytest.raises(RunError, match=rf"state\.json cannot be read: {key}") as refused:
        read_state(tmp_path)
    assert "\n" not in str(refused.value)
