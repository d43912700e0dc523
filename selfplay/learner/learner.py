"""The learner: makes optimizer steps on a model from the samples of one policy."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from selfplay.errors import ConfigError, DivergedError
from selfplay.learner.activation_checkpointing import recompute, recomputes
from selfplay.learner.base_learner import BaseLearner
from selfplay.learner.batch import Batch, cut, named, nothing, pad
from selfplay.learner.checked_calls import loss_of
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.logprobs import REVERSE, Scorer
from selfplay.learner.objective import BatchCounts, LossInputs, Objective
from selfplay.learner.packing import packer
from selfplay.learner.precision import check_masters, in_bfloat16, mixed_precision
from selfplay.learner.process_group import ProcessGroup, SingleProcess, shard, whole
from selfplay.learner.references import GivenReferences, References, Scoring
from selfplay.learner.settings_notes import rate_note, ratio_note
from selfplay.learner.state_memory import check_state_fits
from selfplay.models.offload import offload
from selfplay.models.out_of_memory import explained
from selfplay.models.tree_attention import attending, evaluating, kernel_model_problem
from selfplay.run.activity import ACTIVITY
from selfplay.types import Sample

FUSED_FROM = 2**24
"""Number of trained parameters from which AdamW runs in one pass over memory; smaller models gain
nothing."""
LESS_MEMORY = (
    "lower learner.max_tokens, set learner.activation_checkpointing=true, learn an adapter "
    "(policy.lora={rank: 16}), or use more ranks (runtime.learners) and one copy of the state "
    "(runtime.replicas=1)"
)
"""Keys with which an update needs less memory."""


DEFAULTS = LearnerSettings()
"""Settings of a learner that is made without any."""


class Learner(BaseLearner):
    """One policy's model and optimizer in this process. Works on any Hugging Face causal language
    model.

    The runtime makes it from the config group `learner`. An engine samples with its `weights`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        objective: Objective,
        settings: LearnerSettings = DEFAULTS,
        reference: GivenReferences = None,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        """Args:
        model: Model that is trained in place.
        objective: Objective, whose loss is minimised.
        settings: Settings of the optimizer and of the passes.
        reference: Frozen policy of the KL term, or those of several roles.
        seed: Seed of the split into mini-batches.
        device: Kind of the device on which passes will compute; None: that of the model.

        Raises ConfigError if model, objective and settings do not fit together.
        """
        if objective.reads_reference and reference is None:
            raise ConfigError("objective: it needs a reference policy")
        for key in ("mini_batches", "epochs"):
            if objective.one_step and getattr(settings, key) > 1:
                raise ConfigError(
                    f"learner.{key}: this objective computes the weights of its samples once, "
                    f"before the first optimizer step; set {key}=1"
                )
        self.model, self.objective = model, objective
        self.settings, self.seed = settings, seed
        self.lr = settings.lr
        """Highest learning rate; a warm start changes it at each step."""
        self.mini_batches, self.epochs = settings.mini_batches, settings.epochs
        self.max_tokens = settings.max_tokens
        self.steps = self.skipped = 0
        """Number of optimizer steps so far, and number of steps that were skipped in a row."""
        device = device or model.device.type
        self.bfloat16 = in_bfloat16(settings.precision, device)
        """True if forward and backward passes compute in bfloat16."""
        scorer = Scorer(model, bfloat16=self.bfloat16)
        self.scorer: Scoring = scorer
        self.references = References(reference, bfloat16=self.bfloat16)
        models = [model, *self.references.models]
        for scored in models:
            if reason := kernel_model_problem(settings.attention, scored):
                raise ConfigError(f"learner.attention: {reason}")
        with attending(settings.attention, *models):
            self.packer = packer(settings.packing, models, device=device)
        bounds = [each for each in (self.packer.longest, self.references.longest) if each]
        self.longest = min(bounds, key=lambda bound: bound.tokens, default=None)
        rate = rate_note(model, settings.lr)
        notes = (self.packer.note, scorer.note, ratio_note(objective, settings), rate)
        self.notes = tuple(filter(None, notes))
        """Notes for the user about how this model is computed."""
        self.recomputes = recomputes(settings.activation_checkpointing, model, device)
        """True if backward passes compute the blocks again."""
        if self.recomputes:
            recompute(model)
        self.micro_batches_begun = 0
        """Number of micro-batches that have begun; its growth shows that the learner works."""
        self.peers: ProcessGroup = SingleProcess()
        self.make_optimizer()

    def make_optimizer(self) -> None:
        """Make a new optimizer of the trained parameters of the present model."""
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError("the policy has no parameter that could be trained")
        check_masters(self.parameters)
        check_state_fits(self.model.parameters())
        # The fused step rounds differently in the last bit.
        large = sum(p.numel() for p in self.parameters) >= FUSED_FROM
        fused = True if large and isinstance(self.peers, SingleProcess) else None
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.lr,
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
            fused=fused,
        )

    def forget_parameters(self) -> None:
        """Drop the optimizer and the list of parameters until the next `make_optimizer`.

        Both would keep tensors in memory that the model does not have any more.
        """
        self.parameters = []
        del self.optimizer

    def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[list[float]]:
        """Return [S, C] nats of each completion under the present weights, or under the reference.

        A token that is not trainable gets the sampler's value, or 0 if that is not finite. The
        model is in evaluation mode during the call, because dropout would change the values.
        """
        completions: dict[int, list[float]] = {}
        with self._passes(), explained("log-probabilities", LESS_MEMORY):
            for number, batch in self._micro_batches(samples):
                model, scorer = self.model, self.scorer
                if reference:
                    model, scorer = self.references.pair(number)
                with evaluating(model):
                    rows = scorer(batch).logprobs
                for sample, row in zip(batch.samples, rows.tolist(), strict=True):
                    completions[id(sample)] = row[: len(sample.turn.completion_ids)]
        return [completions[id(sample)] for sample in samples]

    @contextmanager
    def _passes(self) -> Iterator[None]:
        """Set the attention kernel and the precision of forward and backward passes."""
        models = [self.model, *self.references.models]
        with (
            attending(self.settings.attention, *models),
            mixed_precision(*models, bfloat16=self.bfloat16),
        ):
            yield

    def _micro_batches(self, samples: Sequence[Sample]) -> Iterator[tuple[int, Batch]]:
        """Yield the index of the reference of a micro-batch, and the micro-batch."""
        padded = []
        for reference, part in enumerate(self.references.divided(samples)):
            rows = self.packer.rows(part, max_tokens=self.max_tokens)
            parts = [*cut(rows, max_tokens=self.max_tokens, mask=self.packer.mask)]
            padded += [(reference, *each) for each in self.peers.pad_passes(parts)]
        for number, (reference, rows, least) in enumerate(padded, start=1):
            self.micro_batches_begun += 1
            self.peers.begin_micro_batch(self.scorer, last=number == len(padded))
            yield reference, pad(rows or [nothing()], least=least, masked=self.packer.sparse)

    def optimize(
        self, samples: Sequence[Sample], totals: BatchCounts, *, step: int
    ) -> dict[str, float]:
        """Make one optimizer step on samples that have a gradient. Returns metrics.

        `totals` are the denominators of the loss: counts over all samples of the step, also those
        without a gradient. A step whose loss or gradient is not finite is skipped, see `update`.
        """
        # Not train(): with dropout, another policy than the one that sampled would be scored.
        self.model.eval()
        for reference in self.references.models:
            reference.eval()
        self.drop_gradients()
        with explained(f"learning at step {step}", LESS_MEMORY):
            return self._optimize(samples, totals, step)

    def _optimize(
        self, samples: Sequence[Sample], totals: BatchCounts, step: int
    ) -> dict[str, float]:
        sums, fault = {"loss": 0.0, "computed_tokens": 0.0, "read": 0.0}, ""
        objective = self.objective.at(step)
        with ACTIVITY.counting("samples", len(samples)) as tally:
            for reference, batch in self._micro_batches(samples):
                with self._passes():
                    scores = self._scores(batch, objective, reference)
                    loss, diagnostics = loss_of(objective, scores, totals)
                    value = float(loss.detach())
                    if not math.isfinite(value):
                        fault = fault or _complaint(f"the loss is {value}", step, batch.samples)
                    loss.backward()
                counted = {"loss": value, "computed_tokens": batch.ids.numel()}
                counted["read"] = float(batch.mask.sum())
                for name, number in {**counted, **diagnostics}.items():
                    sums[name] = sums.get(name, 0.0) + number
                tally.add(len(batch.samples))
        # All processes continue from here, or none: the next optimizer step waits for all.
        sums, fault = self.peers.sum_metrics(sums, fault)
        if fault:
            return self._skip(fault) | {"computed_tokens": sums["computed_tokens"]}
        means = {name: sums.pop(name) for name in ("loss", "computed_tokens")}
        read = max(sums.pop("read"), 1.0)
        metrics = {name: value / read for name, value in sums.items()} | means
        norm = self._clip()
        if not math.isfinite(norm):  # the same number on all processes
            return metrics | self._skip(_complaint(f"the gradient norm is {norm}", step, samples))
        self.steps, self.skipped = self.steps + 1, 0
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return {**metrics, "gradient_norm": norm, "lr": rate}

    def rate(self) -> float:
        """Return the learning rate of the present optimizer step; the first one has `steps` 1."""
        warmup, decay = self.settings.warmup_steps, self.settings.decay_steps
        warm = min(1.0, self.steps / max(warmup, 1))
        if not decay:
            return self.lr * warm
        left, final = 1.0 - min(1.0, self.steps / decay), self.settings.final_lr
        return self.lr * min(warm, final + (1.0 - final) * left)

    def _clip(self) -> float:
        """Bound the gradient. Returns its norm before that, over all shards."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.settings.clip_norm, norm)
        return float(norm)

    def _skip(self, fault: str) -> dict[str, float]:
        """Drop the gradients of a step that cannot be made, and return its metrics.

        All processes call this together, because they agree on the fault. Raises DivergedError if
        too many steps in a row were skipped, or if a weight of any process is not finite.
        """
        self.drop_gradients()
        self.skipped += 1
        named_parameters = self.model.named_parameters()
        broken = (name for name, weight in named_parameters if not shard(weight).isfinite().all())
        name = next(broken, "")
        worse = f"weight {name} is not finite, and {fault}" if name else ""
        _, worse = self.peers.sum_metrics({}, worse)
        if worse:
            raise DivergedError(f"{worse}; lower the learning rate")
        if self.skipped > self.settings.max_skipped:
            row = f"; {self.skipped} steps in a row had such a fault (learner.max_skipped)"
            raise DivergedError(f"{fault}{row * (self.skipped > 1)}; lower the learning rate")
        return {"skipped": 1.0}

    def update_ema(self) -> None:
        """Move the EMA towards the model by the objective's `ema_rate`."""
        update_ema(self.references.average, self.model, self.objective.ema_rate)

    def _scores(self, batch: Batch, objective: Objective, number: int) -> LossInputs:
        """Return the inputs of the loss; `number` is the index of the reference."""
        reference, reference_logprobs = None, None
        if objective.kl:
            _, scorer = self.references.pair(number)
            with torch.no_grad():
                if objective.divergence is None:
                    reference_logprobs = scorer(batch).logprobs
                else:
                    reference = scorer.next_tokens(batch)
        found = self.scorer(
            batch,
            entropy=bool(objective.entropy),
            reference=reference,
            divergence=REVERSE if objective.divergence is None else objective.divergence,
        )
        device = found.logprobs.device
        return LossInputs(
            logprobs=found.logprobs,
            old_logprobs=batch.old_logprobs.to(device),
            advantages=batch.advantages.to(device),
            mask=batch.mask.to(device),
            reference_logprobs=reference_logprobs,
            kl=found.kl,
            entropy=found.entropy,
        )

    @property
    def keeps_average(self) -> bool:
        """True if the reference is a moving average of the weights."""
        return bool(self.references.models) and self.objective.reference == "ema"

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return the model's own tensors by name, and drop the gradients.

        The training loop publishes the weights after the last optimizer step of a batch; the
        gradients would hold memory while other policies learn and the engine samples.
        """
        self.drop_gradients()
        state: Mapping[str, torch.Tensor] = self.model.state_dict()
        return state

    def drop_gradients(self) -> None:
        """Free the memory of the gradients until the next optimizer step."""
        self.optimizer.zero_grad(set_to_none=True)

    def fetch_weights(self) -> None:
        """Do nothing, because the policy has the learner's own tensors."""

    def offload(self) -> Callable[[], None]:
        """Move all tensors to main memory and drop the gradients.

        Returns the function that moves the tensors back.
        """
        # The scorer of a sharded model is a module that contains the model.
        own = self.scorer if isinstance(self.scorer, Module) else self.model
        return offload([own, *self.references.modules()], self.optimizer)

    def begin_again(self) -> None:
        """Reset the optimizer's averages and steps; set an EMA to the present model."""
        self.optimizer.state.clear()
        self.steps = self.skipped = 0
        if self.keeps_average:
            update_ema(self.references.average, self.model, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer state, counters and EMA; the weights are saved with the policy."""
        state = {"optimizer": self.optimizer.state_dict(), "steps": self.steps}
        state["skipped"] = self.skipped
        if self.keeps_average:
            pairs = ema_pairs(self.references.average, self.model)
            state["ema"] = {name: mean for name, mean, _ in pairs}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the optimizer keeps its own settings.

        A resumed run may have changed them, and torch restores those of the state.
        """
        own = [{**group} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for weight, averages in self.optimizer.state.items():
            for name, tensor in averages.items():
                if torch.is_tensor(tensor) and tensor.dim() and tensor.shape != weight.shape:
                    raise ValueError(
                        f"the optimizer's {name} has the shape {[*tensor.shape]}, and its weight "
                        f"{[*weight.shape]}"
                    )
        for group, settings in zip(self.optimizer.param_groups, own, strict=True):
            group.update({**settings, "params": group["params"]})
        place_steps(self.optimizer)
        self.steps, self.skipped = index(state["steps"]), index(state.get("skipped", 0))
        if self.keeps_average and "ema" in state:
            try:
                self.references.average.load_state_dict(state["ema"], strict=False)
            except RuntimeError as error:
                raise ValueError(f"the EMA: {error}") from error


def place_steps(optimizer: torch.optim.Optimizer) -> None:
    """Move the step counters of AdamW to where it needs them, after its state was replaced.

    The fused step needs each counter on the device of its parameter, and the other one in main
    memory.
    """
    for group in optimizer.param_groups:
        there = group["fused"] or group["capturable"]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if "step" in state:
                state["step"] = state["step"].to(parameter.device if there else "cpu")


def update_ema(average: PreTrainedModel, model: PreTrainedModel, rate: float) -> None:
    """Move the weights of an average towards the model's by a fraction `rate` of the difference."""
    with torch.no_grad():
        for _, mean, now in ema_pairs(average, model):
            shard(mean).lerp_(shard(now), rate)


def ema_pairs(
    average: PreTrainedModel, model: PreTrainedModel
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Return name, averaged weight and present weight of all trained parameters, without an
    adapter's base."""
    pairs = zip(average.named_parameters(), model.parameters(), strict=True)
    return ((name, mean.detach(), now.detach()) for (name, mean), now in pairs if now.requires_grad)


def _complaint(what: str, step: int, samples: Sequence[Sample]) -> str:
    shown = [named(sample) for sample in samples[:4]]
    rest = len(samples) - len(shown)
    where = ", ".join(shown) + (f" and {rest} more" if rest else "")
    return f"{what} at step {step} on {where}"
