"""The learner: samples of one policy to optimizer steps on its model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.errors import ConfigError, DivergedError
from selfplay.learner.batch import Batch, micro_batches, trainable_tokens
from selfplay.learner.logprobs import Scorer
from selfplay.learner.objective import Scores, Surrogate, Totals
from selfplay.learner.packing import Packing, packer
from selfplay.seeds import derive
from selfplay.types import Sample

COUNTS = ("tokens", "idle_samples", "computed_tokens")
"""Metrics that add up over the optimizer steps of one batch; the others are averaged."""


class Learner:
    """One policy's optimizer. Works on any Hugging Face causal language model."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        objective: Surrogate,
        reference: PreTrainedModel | None = None,
        lr: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        clip_norm: float = 1.0,
        warmup_steps: int = 0,
        mini_batches: int = 1,
        max_tokens: int = 16_384,
        packing: Packing = "auto",
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
        max_tokens: Tokens of one forward pass, padding included.
        packing: Whether samples that share prefixes share a row: auto (where that is cheaper),
            trie (wherever it saves a token), rows (never).
        seed: Of the split into mini-batches.
        """
        if objective.reads_reference and reference is None:
            raise ConfigError("objective: it needs a reference policy")
        if objective.one_step and mini_batches > 1:
            raise ConfigError(
                "learner.mini_batches: this objective weighs its samples by the present weights, "
                "which the second mini-batch no longer has; set mini_batches=1"
            )
        if mini_batches < 1 or max_tokens < 1 or warmup_steps < 0 or clip_norm <= 0:
            raise ConfigError(
                "learner: mini_batches and max_tokens are at least 1, warmup_steps at least 0, "
                "clip_norm above 0"
            )
        self.model, self.reference, self.objective = model, reference, objective
        self.lr, self.clip_norm, self.warmup_steps = lr, clip_norm, warmup_steps
        self.mini_batches, self.max_tokens, self.seed = mini_batches, max_tokens, seed
        self.steps = 0
        self.scorer = Scorer(model)
        self.reference_scorer = None if reference is None else Scorer(reference)
        models = [model] if reference is None else [model, reference]
        self.packer = packer(packing, models)
        self.notes = tuple(filter(None, (self.packer.note, self.scorer.note)))
        """What a user should know of how this model is computed."""
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
        prepared, figures = self.objective.prepare(usable, self.logprobs)
        metrics |= figures
        parts = [self._step(part, step) for part in self._split(prepared, step)]
        if self.reference is not None and self.objective.reference == "magnet":
            follow(self.reference, self.model, self.objective.magnet_rate)
        for name in dict.fromkeys(name for part in parts for name in part):
            values = [part[name] for part in parts if name in part]
            metrics[name] = sum(values) / (1 if name in COUNTS else len(values))
        return metrics

    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """[N][C] nats that the present weights, or the reference's, give each completion.

        Where a token is not trainable the sampler's are given back.
        """
        scorer = self.reference_scorer if reference else self.scorer
        assert scorer is not None
        found: dict[int, list[float]] = {}
        with torch.no_grad():
            for batch in self._micro_batches(samples):
                rows, _ = scorer(batch)
                for sample, row in zip(batch.samples, rows.tolist(), strict=True):
                    found[id(sample)] = row[: len(sample.turn.completion_ids)]
        return [found[id(sample)] for sample in samples]

    def _micro_batches(self, samples: Sequence[Sample]) -> Iterator[Batch]:
        rows = self.packer.rows(samples, max_tokens=self.max_tokens)
        return micro_batches(rows, max_tokens=self.max_tokens)

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
        total, sums, computed, size = 0.0, dict[str, float](), 0, 0
        for batch in self._micro_batches(work):
            loss, diagnostics = self.objective.loss(self._scores(batch), totals)
            value = float(loss.detach())
            if not torch.isfinite(loss):
                raise DivergedError(_complaint(f"the loss is {value}", step, batch.samples))
            loss.backward()
            total += value
            computed += int(batch.mask.sum())
            size += batch.ids.numel()
            for name, diagnostic in diagnostics.items():
                sums[name] = sums.get(name, 0.0) + diagnostic
        metrics = {name: value / max(computed, 1) for name, value in sums.items()}
        metrics |= {"loss": total, "tokens": float(totals.tokens), "computed_tokens": float(size)}
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
        logprobs, entropy = self.scorer(batch, entropy=bool(self.objective.entropy))
        reference = None
        if self.objective.kl and self.reference_scorer is not None:
            with torch.no_grad():
                reference, _ = self.reference_scorer(batch)
        device = logprobs.device
        return Scores(
            logprobs=logprobs,
            old_logprobs=batch.old_logprobs.to(device),
            advantages=batch.advantages.to(device),
            mask=batch.mask.to(device),
            reference_logprobs=reference,
            entropy=entropy,
        )

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The model's own tensors by name."""
        state: Mapping[str, torch.Tensor] = self.model.state_dict()
        return state

    def begin_again(self) -> None:
        """Forget the optimizer's averages and its steps; a magnet stands where the model is now."""
        self.optimizer.state.clear()
        self.steps = 0
        if self.reference is not None and self.objective.reference == "magnet":
            follow(self.reference, self.model, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Optimizer state, counters and magnet; the weights are saved with the policy."""
        state = {"optimizer": self.optimizer.state_dict(), "steps": self.steps}
        if self.reference is not None and self.objective.reference == "magnet":
            state["magnet"] = {name: mean for name, mean, _ in _apart(self.reference, self.model)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        if self.reference is not None and "magnet" in state:
            self.reference.load_state_dict(state["magnet"], strict=False)


def follow(average: PreTrainedModel, model: PreTrainedModel, rate: float) -> None:
    """Move the weights of an average a share `rate` of their way to the model's."""
    with torch.no_grad():
        for _, mean, now in _apart(average, model):
            mean.lerp_(now, rate)


def _apart(
    average: PreTrainedModel, model: PreTrainedModel
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The weights of both by name, but for tensors that both hold, such as an adapter's base."""
    pairs = zip(average.named_parameters(), model.parameters(), strict=True)
    return ((name, mean.detach(), now.detach()) for (name, mean), now in pairs if mean is not now)


def _complaint(what: str, step: int, samples: Sequence[Sample]) -> str:
    named = [f"{s.group}/{s.episode}/{s.turn.agent}" for s in samples[:4]]
    rest = len(samples) - len(named)
    where = ", ".join(named) + (f" and {rest} more" if rest else "")
    return (
        f"{what} at step {step} on samples {where}; lower the learning rate or resume from the "
        "last checkpoint with other settings"
    )


def _any_advantage(sample: Sample) -> bool:
    advantage = sample.advantage
    return any(advantage) if isinstance(advantage, tuple) else advantage != 0
