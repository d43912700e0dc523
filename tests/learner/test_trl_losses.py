"""Tests of losses against TRL's own numbers, which scripts/record_trl.py recorded."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from selfplay.learner.dpo import DPO
from selfplay.learner.objective import BatchCounts, LossInputs, PolicyLoss
from selfplay.types import Sample, Turn

RECORD = json.loads((Path(__file__).parent / "golden" / "trl_losses.json").read_text())
OURS: dict[str, PolicyLoss] = {
    "grpo": PolicyLoss(aggregate="sequence_mean"),
    "grpo_kl": PolicyLoss(aggregate="sequence_mean", kl=0.1, estimator="k3"),
    "dapo": PolicyLoss(high=0.28, aggregate="token_mean"),
    "dapo_entropy": PolicyLoss(high=0.28, aggregate="token_mean", entropy=0.01),
    "dr_grpo": PolicyLoss(aggregate="constant", length=RECORD["max_completion"]),
    "gspo": PolicyLoss(ratio="sequence", low=0.05, high=0.06, aggregate="sequence_mean"),
    # TRL bounds the ratio itself, and from above only.
    "cispo": PolicyLoss(clip="cispo", low=1.0, high=0.2, aggregate="token_mean"),
}


def given(name: str) -> Tensor:
    return torch.tensor(RECORD["inputs"][name], dtype=torch.float64)


def test_the_record_names_its_version_and_cases() -> None:
    assert RECORD["trl"] == "1.16.0"
    assert set(RECORD["cases"]) == {*OURS, "dpo"}


@pytest.mark.parametrize("name", OURS)
def test_loss_and_gradient_equal_those_of_trl(name: str) -> None:
    logits = given("logits").requires_grad_()
    distribution = logits.log_softmax(-1)
    ids = given("completion_ids").long()
    mask = given("completion_mask")
    scores = LossInputs(
        logprobs=distribution.gather(-1, ids[..., None])[..., 0],
        old_logprobs=given("old_per_token_logps"),
        advantages=given("advantages")[:, None].expand_as(mask),
        mask=mask,
        reference_logprobs=given("ref_per_token_logps"),
        entropy=-(distribution.exp() * distribution).sum(-1),
    )
    totals = BatchCounts(tokens=int(mask.sum()), sequences=len(mask))
    loss, sums = OURS[name].loss(scores, totals)
    agree(name, loss, logits)
    assert sums["clipped"] > 0  # the case reaches the bounds


def test_dpo_equals_that_of_trl() -> None:
    """Check `prepare` and `loss` together; rows 0 and 1 are better than rows 2 and 3."""
    logits, ids = given("logits").requires_grad_(), given("completion_ids").long()
    mask, reference = given("completion_mask"), given("ref_per_token_logps")
    chosen = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    samples = [pair_member(row, ids, mask) for row in range(4)]

    def score(samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        values = given("ref_per_token_logps") if reference else chosen.detach()
        return [values[int(s.turn.agent[-1])].tolist() for s in samples]

    objective = DPO(beta=0.5)
    prepared, metrics = objective.prepare(samples, score)
    advantages = torch.tensor([s.advantage for s in prepared], dtype=torch.float64)[:, None]
    scores = LossInputs(
        logprobs=chosen,
        old_logprobs=reference,
        advantages=advantages.expand_as(mask),
        mask=mask,
    )
    loss, _ = objective.loss(scores, BatchCounts(tokens=int(mask.sum()), sequences=4))
    wanted = RECORD["cases"]["dpo"]
    assert metrics["preference_loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.flatten().tolist() == pytest.approx(wanted["gradient"], abs=1e-6)


def agree(name: str, loss: Tensor, logits: Tensor) -> None:
    wanted = RECORD["cases"][name]
    assert loss.item() == pytest.approx(wanted["loss"], abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.flatten().tolist() == pytest.approx(wanted["gradient"], abs=1e-6)
    assert max(map(abs, wanted["gradient"])) > 1e-3


def pair_member(row: int, ids: Tensor, mask: Tensor) -> Sample:
    length = ids.shape[1]
    turn = Turn(
        agent=f"solver_{row}",
        role="solver",
        policy="base",
        version=0,
        prompt_ids=(1,),
        completion_ids=tuple(ids[row].tolist()),
        logprobs=(0.0,) * length,
        loss_mask=tuple(int(value) for value in mask[row]),
    )
    return Sample(turn=turn, advantage=1.0 if row < 2 else -1.0, pair=str(row % 2))
