"""Tests that invalid settings of a learner are refused and a high learning rate gives a note."""

import math
from typing import Any

import pytest

from selfplay.errors import SettingError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from tests.helpers.builders import llama


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": math.inf}, "lr: inf does not fit: a finite number of at least 0"),
        ({"lr": math.nan}, "lr: nan does not fit"),
        ({"lr": -1e-6}, "lr: -1e-06 does not fit"),
        ({"clip_norm": math.nan}, "clip_norm: nan does not fit: a finite number above 0"),
        ({"clip_norm": math.inf}, "clip_norm: inf does not fit"),
        ({"clip_norm": 0}, "clip_norm: 0 does not fit"),
        ({"weight_decay": math.inf}, "weight_decay: inf does not fit"),
        ({"betas": (0.9, math.nan)}, "betas: nan does not fit"),
        ({"betas": (1.0, 0.9)}, "betas: 1 does not fit"),
        ({"max_skipped": -1}, "max_skipped: -1 does not fit: at least 0"),
        ({"mini_batches": 0}, "mini_batches: 0 does not fit"),
        ({"epochs": 0}, "epochs: 0 does not fit"),
        ({"max_tokens": 0}, "max_tokens: 0 does not fit"),
    ],
)
def test_invalid_numbers_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}"):
        LearnerSettings(**settings)


def test_the_rate_of_a_tiny_model_is_a_note_for_a_pretrained_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("selfplay.learner.settings_notes.PRETRAINED_FROM", 1000)
    high, low = LearnerSettings(lr=1e-3), LearnerSettings(lr=1e-5)
    (note,) = Learner(llama(), objective=PolicyLoss(), settings=high).notes
    assert note.startswith("learner.lr=0.001 trains ")
    assert not Learner(llama(), objective=PolicyLoss(), settings=low).notes
    adapter = adapted(llama(), Lora(rank=2), seed=0, where="policy 'p'")
    assert not Learner(adapter, objective=PolicyLoss(), settings=high).notes
    monkeypatch.undo()
    assert not Learner(llama(), objective=PolicyLoss(), settings=high).notes
