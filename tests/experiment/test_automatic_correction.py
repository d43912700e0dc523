"""Tests of the correction of samples whose log-probabilities are not those of the learner."""

import pytest

from selfplay.config import compose
from selfplay.engines.transformers import TransformersEngine
from selfplay.experiment.experiment import Experiment
from selfplay.learner.objective import PolicyLoss
from selfplay.runtime.local import Local


def correction(*overrides: str) -> str:
    """Return the correction of a loaded run, and check that its learner has it too."""
    experiment = Experiment(compose.load(["+experiment=tiny/smoke", *overrides]))
    experiment.load()
    try:
        (learner,) = experiment.learners.values()
        found = experiment.objective
        assert isinstance(found, PolicyLoss) and learner.objective is found  # type: ignore[attr-defined]
        return found.correction
    finally:
        experiment.close()


def test_an_engine_with_the_learners_tensors_needs_no_correction() -> None:
    assert correction() == "none"


def test_an_inexact_engine_needs_a_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformersEngine, "exact", False)
    assert correction() == "truncated"
    assert correction("objective.correction=none") == "none"


def test_a_learner_that_computes_in_bfloat16_needs_a_correction() -> None:
    assert correction("learner.precision=bfloat16") == "truncated"


def test_learners_of_other_processes_may_compute_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver's copy of the policy is on the CPU, also if the ranks use GPUs."""
    monkeypatch.setattr(Local, "learner_device", "cuda")
    assert correction() == "truncated"
    assert correction("learner.precision=float32") == "none"


def test_samples_of_truncated_distributions_need_a_correction() -> None:
    assert correction("sampling.default.top_k=4") == "truncated"
