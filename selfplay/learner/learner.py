"""The learner: samples of one policy to optimizer steps on its model.

An update: one pass over the samples of a batch, wherever its optimizer steps are computed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.errors import ConfigError, DivergedError
from selfplay.learner.activation_checkpointing import recompute
from selfplay.learner.batch import Batch, computed, cut, named, nothing, pad, trainable_tokens
from selfplay.learner.logprobs import Scorer
from selfplay.learner.objective import BatchCounts, LossInputs, Objective, check_logprobs_known
from selfplay.learner.packing import Packing, packer
from selfplay.learner.process_group import ProcessGroup, SingleProcess, shard, whole
from selfplay.models.position_limits import ContextBound
from selfplay.models.tree_attention import Kernel, attending, evaluating, kernel_model_problem
from selfplay.rng import derive
from selfplay.types import Sample

COUNTS = ("tokens", "idle_samples", "computed_tokens")
"""Metrics that add up over the optimizer steps of one batch; the others are averaged."""


class BaseLearner(ABC):
    """What turns batches of samples into optimizer steps."""

    objective: Objective
    mini_batches: int
    seed: int
    longest: ContextBound | None = None
    """The longest row that the model computes correctly, if it has such a bound."""

    @abstractmethod
    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """[N][C] nats that the present weights, or the reference's, give each completion.

        A token that is not trainable gets the sampler's value, or 0 if that is not finite.
        """

    @abstractmethod
    def optimize(
        self, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """One optimizer step on samples that have a gradient, of a batch with these totals."""

    @abstractmethod
    def update_ema(self) -> None:
        """Move the EMA, after the steps of a batch."""

    def update(self, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        """One pass over the samples; returns metrics.

        Raises DivergedError if a loss or a gradient is not finite; the optimizer step at fault has
        then written nothing. Raises DivergedError too, before any step, if the sampler's
        log-probability of a trainable token is not finite: no weight can be given to such a token.
        Raises ConfigError for samples that were drawn greedily, and for a sample that is longer
        than the model computes correctly.
        """
        usable = [sample for sample in samples if trainable_tokens(sample)]
        for sample in usable:
            check_sample(sample, self.longest)
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
        if parts and "policy_kl" in parts[0]:
            # Before its first step a batch has moved nothing: what differs is how it was sampled.
            metrics.setdefault("mismatch_kl", parts[0]["policy_kl"])
        if self.objective.reads_reference and self.objective.reference == "ema":
            self.update_ema()
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
        totals = BatchCounts(tokens=sum(map(trainable_tokens, samples)), sequences=len(samples))
        work = samples
        if self.objective.linear_in_advantage:
            # No gradient can come from these; the denominators count them all the same.
            work = [sample for sample in samples if _any_advantage(sample)]
        metrics = {
            "tokens": float(totals.tokens),
            "idle_samples": float(len(samples) - len(work)),
        }
        if not work:
            return metrics | {"loss": 0.0, "computed_tokens": 0.0}
        return metrics | self.optimize(work, totals, step=step)


def check_sample(sample: Sample, longest: ContextBound | None) -> None:
    """Raise an error, naming the sample, if nothing can be learned from it.

    DivergedError if a trainable token's log-probability is not finite, ConfigError if the
    sample has more tokens than `longest`.
    """
    check_logprobs_known(sample, sample.turn.logprobs, whose="sampler")
    tokens = len(computed(sample))
    if longest is not None and tokens > longest.tokens:
        raise ConfigError(
            f"{named(sample)}: it has {tokens} tokens, and its model is correct for at most "
            f"{longest.tokens}, because it has {longest.reason}; shorten prompts or answers"
        )


def _any_advantage(sample: Sample) -> bool:
    advantage = sample.advantage
    return any(advantage) if isinstance(advantage, tuple) else advantage != 0


LARGEST = 1e30
"""The largest number that 32 bits hold even after AdamW has divided it by its bias correction."""
RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda x: 0 <= x <= LARGEST, f"a finite number of at least 0 (at most {LARGEST:g})"),
    "betas": (lambda x: 0 <= x < 1, "a number of at least 0 and below 1"),
    "weight_decay": (lambda x: 0 <= x <= LARGEST, "a finite number of at least 0"),
    "clip_norm": (lambda x: 0 < x <= LARGEST, "a finite number above 0"),
    "warmup_steps": (lambda x: x >= 0, "at least 0"),
    "mini_batches": (lambda x: x >= 1, "at least 1"),
    "max_tokens": (lambda x: x >= 1, "at least 1"),
}
"""Check of each numeric setting of a learner, and the condition in words for an error."""

Scoring: TypeAlias = Callable[..., tuple[Tensor, Tensor | None]]
"""Called as a `Scorer` is."""


class Learner(BaseLearner):
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
        packing: Packing = "auto",
        attention: Kernel | None = None,
        activation_checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        """Args:
        model: What is trained, in place.
        objective: What is maximised.
        reference: The frozen policy of the KL term.
        lr: AdamW's learning rate, reached linearly in `warmup_steps` optimizer steps.
        betas: AdamW's averaging.
        weight_decay: AdamW's.
        clip_norm: Largest gradient norm; finite, so that one bad batch has a bounded step.
        warmup_steps: Optimizer steps until the full learning rate.
        mini_batches: Optimizer steps per batch of samples.
        max_tokens: Tokens of one forward pass, padding included.
        packing: Whether samples that share prefixes share a row: auto (where that is cheaper),
            trie (wherever it saves a token), rows (never).
        attention: What computes attention while learning: sdpa, eager, flex_attention or
            flash_attention_2; None is what the model was loaded with.
        activation_checkpointing: Whether blocks are computed again in the backward pass, which
            saves the memory of what is inside them.
        seed: Of the split into mini-batches.
        """
        if objective.reads_reference and reference is None:
            raise ConfigError("objective: it needs a reference policy")
        if objective.one_step and mini_batches > 1:
            raise ConfigError(
                "learner.mini_batches: this objective weighs its samples by the present weights, "
                "which the second mini-batch no longer has; set mini_batches=1"
            )
        numbers = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "clip_norm": clip_norm}
        counts = {"warmup_steps": warmup_steps, "mini_batches": mini_batches}
        check_learner_settings({**numbers, **counts, "max_tokens": max_tokens}, where="learner")
        self.model, self.reference, self.objective = model, reference, objective
        self.lr, self.clip_norm, self.warmup_steps = lr, clip_norm, warmup_steps
        self.mini_batches, self.max_tokens, self.seed = mini_batches, max_tokens, seed
        self.steps = 0
        scorer = Scorer(model)
        self.scorer: Scoring = scorer
        self.reference_scorer: Scoring | None = None if reference is None else Scorer(reference)
        models = [model] if reference is None else [model, reference]
        for each in models:
            if reason := kernel_model_problem(attention, each):
                raise ConfigError(f"learner.attention: {reason}")
        self.attention, self._attend = attention, partial(attending, attention, *models)
        with self._attend():
            self.packer = packer(packing, models)
        self.longest = self.packer.longest
        self.notes = tuple(filter(None, (self.packer.note, scorer.note)))
        """What a user should know of how this model is computed."""
        if activation_checkpointing:
            recompute(model)
        self.peers: ProcessGroup = SingleProcess()
        self.adam: Any = {"lr": lr, "betas": (betas[0], betas[1]), "weight_decay": weight_decay}
        self.use_parameters()

    def use_parameters(self) -> None:
        """A new optimizer of what learns in the model as it is now."""
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError("the policy has no parameter that could be trained")
        self.optimizer = torch.optim.AdamW(self.parameters, **self.adam)

    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """[N][C] nats that the present weights, or the reference's, give each completion.

        A token that is not trainable gets the sampler's value, or 0 if that is not finite. The
        model is in evaluation mode during the call, because dropout would change the values.
        """
        scorer = self.reference_scorer if reference else self.scorer
        model = self.reference if reference else self.model
        assert scorer is not None and model is not None
        found: dict[int, list[float]] = {}
        with self._attend(), evaluating(model):
            for batch in self._micro_batches(samples):
                rows, _ = scorer(batch)
                for sample, row in zip(batch.samples, rows.tolist(), strict=True):
                    found[id(sample)] = row[: len(sample.turn.completion_ids)]
        return [found[id(sample)] for sample in samples]

    def _micro_batches(self, samples: Sequence[Sample]) -> Iterator[Batch]:
        rows = self.packer.rows(samples, max_tokens=self.max_tokens)
        held = [*cut(rows, max_tokens=self.max_tokens, mask=self.packer.mask)]
        for rows, least in self.peers.pad_passes(held):
            yield pad(rows or [nothing()], least=least, masked=self.packer.sparse)

    def optimize(
        self, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """One optimizer step on samples that have a gradient, of a batch with these totals."""
        # Not train(): dropout would score other policies than the one that sampled.
        self.model.eval()
        if self.reference is not None:
            self.reference.eval()
        self.optimizer.zero_grad(set_to_none=True)
        found, fault = {"loss": 0.0, "computed_tokens": 0.0, "read": 0.0}, ""
        for batch in self._micro_batches(samples):
            with self._attend():
                loss, diagnostics = self.objective.loss(self._scores(batch), totals)
                value = float(loss.detach())
                if not math.isfinite(value):
                    fault = fault or _complaint(f"the loss is {value}", step, batch.samples)
                loss.backward()
            counted = {"loss": value, "computed_tokens": batch.ids.numel()}
            counted["read"] = float(batch.mask.sum())
            for name, each in {**counted, **diagnostics}.items():
                found[name] = found.get(name, 0.0) + each
        # All processes go on from here, or none: the next one waits for all.
        found, fault = self.peers.sum_metrics(found, fault)
        if fault:
            raise DivergedError(fault)
        means = {name: found.pop(name) for name in ("loss", "computed_tokens")}
        read = max(found.pop("read"), 1.0)
        metrics = {name: value / read for name, value in found.items()} | means
        norm = self._clip()
        if not math.isfinite(norm):
            raise DivergedError(_complaint(f"the gradient norm is {norm}", step, samples))
        self.steps += 1
        rate = self.lr * min(1.0, self.steps / max(self.warmup_steps, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return {**metrics, "gradient_norm": norm, "lr": rate}

    def _clip(self) -> float:
        """Bound the gradient; the norm that it had, of all shards."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        return float(norm)

    def update_ema(self) -> None:
        """Move the EMA a share of its way to the model."""
        if self.reference is not None:
            update_ema(self.reference, self.model, self.objective.ema_rate)

    def _scores(self, batch: Batch) -> LossInputs:
        logprobs, entropy = self.scorer(batch, entropy=bool(self.objective.entropy))
        reference = None
        if self.objective.kl and self.reference_scorer is not None:
            with torch.no_grad():
                reference, _ = self.reference_scorer(batch)
        device = logprobs.device
        return LossInputs(
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
        """Forget the optimizer's averages and its steps; an EMA stands where the model is now."""
        self.optimizer.state.clear()
        self.steps = 0
        if self.reference is not None and self.objective.reference == "ema":
            update_ema(self.reference, self.model, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Optimizer state, counters and EMA; the weights are saved with the policy."""
        state = {"optimizer": self.optimizer.state_dict(), "steps": self.steps}
        if self.reference is not None and self.objective.reference == "ema":
            state["ema"] = {name: mean for name, mean, _ in ema_pairs(self.reference, self.model)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        if self.reference is not None and "ema" in state:
            self.reference.load_state_dict(state["ema"], strict=False)


def check_learner_settings(settings: Mapping[str, Any], *, where: str) -> None:
    """Raise ConfigError for the first number that a `Learner` cannot learn with.

    Args:
        settings: Numbers by their names in `Learner`; other names are ignored.
        where: The config key of the settings, for the error.
    """
    for name, (fits, needed) in RANGES.items():
        value = settings.get(name)
        for each in value if isinstance(value, Sequence) else (value,):
            if isinstance(each, int | float) and not fits(each):
                raise ConfigError(f"{where}.{name}: {each:g} does not fit: {needed} is needed")


def update_ema(average: PreTrainedModel, model: PreTrainedModel, rate: float) -> None:
    """Move the weights of an average a share `rate` of their way to the model's."""
    with torch.no_grad():
        for _, mean, now in ema_pairs(average, model):
            shard(mean).lerp_(shard(now), rate)


def ema_pairs(
    average: PreTrainedModel, model: PreTrainedModel
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """By name, the weights of both that learn; an adapter's base does not."""
    pairs = zip(average.named_parameters(), model.parameters(), strict=True)
    return ((name, mean.detach(), now.detach()) for (name, mean), now in pairs if now.requires_grad)


def _complaint(what: str, step: int, samples: Sequence[Sample]) -> str:
    named = [f"{s.group}/{s.episode}/{s.turn.agent}" for s in samples[:4]]
    rest = len(samples) - len(named)
    where = ", ".join(named) + (f" and {rest} more" if rest else "")
    return (
        f"{what} at step {step} on samples {where}; lower the learning rate or resume from the "
        "last checkpoint with other settings"
    )
