"""Test that the error of a diverging fine-tuning names the step, the example and the remedy."""

from pathlib import Path

import pytest

from selfplay.errors import DivergedError
from selfplay.learner.fine_tune import FineTune
from selfplay.learner.objective import PolicyLoss
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.role import Role
from tests.helpers.failing_objective import FailingLoss
from tests.learner.test_fine_tune_prompts import SIZES, Chirp


def test_a_loss_that_is_not_finite_names_the_step_and_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = build_tokenizer(["say "])
    build_model(len(tokenizer), seed=3, **SIZES).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    failing = FailingLoss(fails=frozenset({1}))

    def made(**settings: object) -> PolicyLoss:
        return failing

    monkeypatch.setattr("selfplay.learner.fine_tune.PolicyLoss", made)
    tune = FineTune(examples=Chirp(), roles={"bird": Role()}, steps=3, batch=1, device="cpu")
    words = (
        r"^warm start: the loss is nan at step 2 on a demonstration of bird; "
        r"lower the learning rate \(warmstart\.lr\)$"
    )
    with pytest.raises(DivergedError, match=words):
        tune.train(base=str(tmp_path))
