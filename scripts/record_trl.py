#!/usr/bin/env python
"""Record losses and gradients of TRL's trainers, as expected values of this library's tests.

    pip install trl==1.16.0          # in an environment of its own
    python scripts/record_trl.py     # writes tests/learner/golden/trl_losses.json

The trainers' own loss code runs on given logits; only its inputs are replaced.
"""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from trl import DPOTrainer, GRPOTrainer

HERE = Path(__file__).resolve().parent.parent / "tests" / "learner" / "golden" / "trl_losses.json"
ROWS, LENGTH, VOCABULARY = 4, 5, 7
MAX_COMPLETION = 8

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "grpo_kl": {"loss_type": "grpo", "beta": 0.1},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dapo_entropy": {"loss_type": "dapo", "epsilon_high": 0.28, "entropy_coef": 0.01},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 0.05,
        "epsilon_high": 0.06,
    },
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.2},
}


def inputs() -> dict[str, torch.Tensor]:
    """Return logits, tokens, masks and advantages that reach both sides of every clip."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits = normal(ROWS, LENGTH, VOCABULARY)
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 1, 0, 0, 0]])
    chosen = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return {
        "logits": logits,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor([1.5, -0.5, 0.75, -1.25], dtype=torch.float64),
        "old_per_token_logps": chosen + 0.3 * normal(ROWS, LENGTH),
        "ref_per_token_logps": chosen + 0.3 * normal(ROWS, LENGTH),
    }


def grpo(given: dict[str, torch.Tensor], **settings: Any) -> dict[str, Any]:
    """Return GRPOTrainer's loss and its gradient in the logits."""
    logits = given["logits"].clone().requires_grad_()
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    epsilon = settings.pop("epsilon", 0.2)
    entropy = settings.pop("entropy_coef", 0.0)
    named = {
        "beta": 0.0,
        "importance_sampling_level": "token",
        "epsilon_low": epsilon,
        "epsilon_high": epsilon,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "max_completion_length": MAX_COMPLETION,
        "aux_loss_enabled": False,
        "use_adaptive_entropy": False,
        "entropy_coef": entropy,
        "_entropy_bonus_enabled": entropy != 0,
        "current_gradient_accumulation_steps": 1,
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(
            num_processes=1,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
            sync_gradients=True,
        ),
        "_metrics": {"train": defaultdict(list)},
        **settings,
    }
    trainer.__dict__.update(named)

    def scored(*_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        distribution = logits.log_softmax(-1)
        chosen = distribution.gather(-1, given["completion_ids"][..., None])[..., 0]
        return chosen, -(distribution.exp() * distribution).sum(-1), None

    trainer._get_per_token_logps_and_entropies = scored
    loss = trainer._compute_loss(
        None,
        {
            **given,
            "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
            "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
            "num_items_in_batch": given["completion_mask"].sum(),
        },
    )
    return recorded(loss, logits)


def dpo(given: dict[str, torch.Tensor], beta: float) -> dict[str, Any]:
    """Return DPOTrainer's loss and its gradient in the logits; rows 0, 1 are better than rows 2,
    3."""
    logits = given["logits"].clone().requires_grad_()
    mask, ids = given["completion_mask"], given["completion_ids"]
    zeros = torch.zeros(ROWS, LENGTH, dtype=torch.float64)

    def outputs(scored: torch.Tensor) -> SimpleNamespace:
        values = {"entropy": zeros, "mean_logits": zeros, "is_top1": zeros > 0}
        return SimpleNamespace(log_probs=scored * mask, **values)

    def model(**_: Any) -> SimpleNamespace:
        return outputs(logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0])

    trainer = DPOTrainer.__new__(DPOTrainer)
    alone = {"gather_for_metrics": lambda x: x, "gather": lambda x: x}
    trainer.__dict__.update(
        {
            "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
            "ref_model": lambda **_: outputs(given["ref_per_token_logps"]),
            "accelerator": SimpleNamespace(device="cpu", **alone),
            "args": SimpleNamespace(
                gradient_checkpointing=False, gradient_checkpointing_kwargs=None
            ),
            "aux_loss_enabled": False,
            "ld_alpha": None,
            "precompute_ref_logps": False,
            "f_divergence_type": "reverse_kl",
            "loss_types": ["sigmoid"],
            "loss_weights": [1.0],
            "beta": beta,
            "label_smoothing": 0.0,
            "use_weighting": False,
            "_total_train_tokens": 0,
            "_tp_size": 1,
            "_metrics": {"train": defaultdict(list)},
        }
    )
    begin = torch.ones(ROWS, 1, dtype=torch.long)
    batch = {
        "input_ids": torch.cat([begin, ids], 1),
        "attention_mask": torch.ones(ROWS, LENGTH + 1, dtype=torch.long),
        "completion_mask": torch.cat([0 * begin, mask], 1),
    }
    loss = trainer._compute_loss(model, batch, False)
    return recorded(loss, logits)


def recorded(loss: torch.Tensor, logits: torch.Tensor) -> dict[str, Any]:
    """Return a loss and its gradient as plain numbers."""
    (gradient,) = torch.autograd.grad(loss, logits)
    return {"loss": loss.item(), "gradient": gradient.flatten().tolist()}


def main() -> None:
    """Write the file."""
    given = inputs()
    found = {name: grpo(given, **settings) for name, settings in CASES.items()}
    found["dpo"] = dpo(given, beta=0.5)
    data = {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "max_completion": MAX_COMPLETION,
        "inputs": {name: tensor.tolist() for name, tensor in given.items()},
        "cases": found,
    }
    HERE.parent.mkdir(exist_ok=True)
    HERE.write_text(json.dumps(data) + "\n")
    print(f"wrote {HERE}: " + ", ".join(f"{name} {f['loss']:.6f}" for name, f in found.items()))


if __name__ == "__main__":
    main()
