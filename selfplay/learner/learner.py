"""The learner: samples of one policy to optimizer steps on its model."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.errors import ConfigError, DivergedError
from selfplay.learner.batch import Batch, micro_batches, trainable_tokens
from selfplay.learner.objective import Objective, Scores, Totals
from selfplay.seeds import derive
from selfplay.types import Sample

COUNTS = ("tokens", "idle_samples")
"""Metrics that add up over the optimizer steps of one batch; the others are averaged."""


class Learner:
    """One policy's optimizer. Works on any Hugging Face causal language model."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        objective: Objective,
        reference: PreTrainedModel | None = None,
        lr: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        clip_norm: float = 1.0,
        warmup_steps: int = 0,
        mini_batches: int = 1,
        max_tokens: int = 16_384,
        seed: int = 0,
    ) -> None:
        """Args:
        model: What is trained, in place.
        objective: What is maximised.
        reference: The frozen policy of the KL term.
        lr: AdamW's learning rate, reached linearly in `warmup_steps` optimizer steps.
        betas: AdamW's averaging.
        weight_decay: AdamW's.
        clip_norm: Largest gradient norm.
        warmup_steps: Optimizer steps until the full learning rate.
        mini_batches: Optimizer steps per batch of samples.
        max_tokens: Padded tokens of one forward pass.
        seed: Of the split into mini-batches.
        """
        if objective.kl and reference is None:
            raise ConfigError("objective.kl needs a reference policy")
        if mini_batches < 1 or max_tokens < 1 or warmup_steps < 0 or clip_norm <= 0:
            raise ConfigError(
                "learner: mini_batches and max_tokens are at least 1, warmup_steps at least 0, "
                "clip_norm above 0"
            )
        self._optional = {"logits_to_keep"} & accepted(model)
        self.model, self.reference, self.objective = model, reference, objective
        self.lr, self.clip_norm, self.warmup_steps = lr, clip_norm, warmup_steps
        self.mini_batches, self.max_tokens, self.seed = mini_batches, max_tokens, seed
        self.steps = 0
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise ConfigError("the policy has no parameter that could be trained")
        self.parameters = parameters
        self.optimizer = torch.optim.AdamW(
            parameters, lr=lr, betas=(betas[0], betas[1]), weight_decay=weight_decay
        )

    def update(self, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        """One pass over the samples; returns metrics.

        Raises DivergedError if a loss or a gradient is not finite; the optimizer step at fault has
        then written nothing. Raises ConfigError for samples that were drawn greedily.
        """
        usable = [sample for sample in samples if trainable_tokens(sample)]
        if any(sample.turn.temperature <= 0 for sample in usable):
            raise ConfigError(
                "sampling: a policy that learns samples at a temperature above 0; "
                "at 0 it never tries anything else"
            )
        metrics: dict[str, float] = {
            "samples": len(samples),
            "samples_without_tokens": len(samples) - len(usable),
        }
        parts = [self._step(part, step) for part in self._split(usable, step)]
        for name in dict.fromkeys(name for part in parts for name in part):
            values = [part[name] for part in parts if name in part]
            metrics[name] = sum(values) / (1 if name in COUNTS else len(values))
        return metrics

    def _split(self, samples: Sequence[Sample], step: int) -> Iterator[list[Sample]]:
        if not samples:
            return
        order = list(samples)
        if self.mini_batches > 1:
            Random(derive(self.seed, "mini-batches", step)).shuffle(order)
        size = -(-len(order) // self.mini_batches)
        rows = iter(order)
        while part := list(islice(rows, size)):
            yield part

    def _step(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        """One optimizer step."""
        totals = Totals(tokens=sum(map(trainable_tokens, samples)), sequences=len(samples))
        work = samples
        if self.objective.linear_in_advantage:
            # No gradient can come from these; the denominators count them all the same.
            work = [sample for sample in samples if _any_advantage(sample)]
        # Not train(): dropout would score other policies than the one that sampled.
        self.model.eval()
        self.optimizer.zero_grad(set_to_none=True)
        total, sums, computed = 0.0, dict[str, float](), 0
        for batch in micro_batches(work, max_tokens=self.max_tokens):
            loss, diagnostics = self.objective.loss(self._scores(batch), totals)
            value = float(loss.detach())
            if not torch.isfinite(loss):
                raise DivergedError(_complaint(f"the loss is {value}", step, batch.samples))
            loss.backward()
            total += value
            computed += int(batch.mask.sum())
            for name, diagnostic in diagnostics.items():
                sums[name] = sums.get(name, 0.0) + diagnostic
        metrics = {name: value / max(computed, 1) for name, value in sums.items()}
        metrics |= {"loss": total, "tokens": float(totals.tokens)}
        metrics["idle_samples"] = float(len(samples) - len(work))
        if not work:
            return metrics
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm))
        if not math.isfinite(norm):
            raise DivergedError(_complaint(f"the gradient norm is {norm}", step, work))
        self.steps += 1
        rate = self.lr * min(1.0, self.steps / max(self.warmup_steps, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return {**metrics, "gradient_norm": norm, "lr": rate}

    def _scores(self, batch: Batch) -> Scores:
        logits = self._logits(self.model, batch)
        distribution = logits.log_softmax(-1)
        device = logits.device
        reference = None
        if self.objective.kl and self.reference is not None:
            with torch.no_grad():
                reference = _chosen(self._logits(self.reference, batch).log_softmax(-1), batch)
        entropy = None
        if self.objective.entropy:
            entropy = -(distribution.exp() * distribution).sum(-1)
        return Scores(
            logprobs=_chosen(distribution, batch),
            old_logprobs=batch.old_logprobs.to(device),
            advantages=batch.advantages.to(device),
            mask=batch.mask.to(device),
            reference_logprobs=reference,
            entropy=entropy,
        )

    def _logits(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """[B, C, V] logits that predict the completion, at the temperature it was sampled at."""
        device = model.device
        out = model(
            input_ids=batch.ids.to(device),
            attention_mask=batch.attention.to(device),
            position_ids=batch.positions.to(device),
            use_cache=False,
            **dict.fromkeys(self._optional, batch.completions + 1),
        )
        kept = out.logits[:, -batch.completions - 1 : -1]
        return kept.float() / batch.temperature.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Optimizer state and counters; the weights are saved with the policy."""
        return {"optimizer": self.optimizer.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


def accepted(model: PreTrainedModel) -> set[str]:
    """Names that the model's forward pass takes; ConfigError if padded rows would go wrong."""
    known = inspect.signature(model.forward).parameters
    names = set(known)
    if any(p.kind is p.VAR_KEYWORD for p in known.values()) and "input_ids" not in known:
        names |= {"attention_mask", "position_ids", "logits_to_keep"}  # a wrapper passes all on
    for name in ("attention_mask", "position_ids"):
        if name not in names:
            raise ConfigError(
                f"policy: {type(model).__name__} takes no {name}, so rows of different lengths "
                "cannot be learned from together; choose another architecture"
            )
    return names


def _complaint(what: str, step: int, samples: Sequence[Sample]) -> str:
    named = [f"{s.group}/{s.episode}/{s.turn.agent}" for s in samples[:4]]
    rest = len(samples) - len(named)
    where = ", ".join(named) + (f" and {rest} more" if rest else "")
    return (
        f"{what} at step {step} on samples {where}; lower the learning rate or resume from the "
        "last checkpoint with other settings"
    )


def _chosen(distribution: Tensor, batch: Batch) -> Tensor:
    targets = batch.targets.to(distribution.device)
    return distribution.gather(-1, targets[..., None])[..., 0]


def _any_advantage(sample: Sample) -> bool:
    advantage = sample.advantage
    return any(advantage) if isinstance(advantage, tuple) else advantage != 0
