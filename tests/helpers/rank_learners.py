"""Learners that every rank makes for itself, with the samples that they learn from."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from selfplay.config.schedule import Schedule
from selfplay.learner.dpo import DPO
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.learner.references import GivenReferences
from selfplay.models.lora import adapted, frozen_copy
from selfplay.models.policy_settings import Lora
from selfplay.types import Sample
from tests.helpers.builders import llama, sample
from tests.helpers.learner_processes import batch

REINFORCE = PolicyLoss(ratio="none", clip="none")
LONG = 160
"""Length of a prompt that is long enough to be computed first, as the shared stem of a row."""


@dataclass(frozen=True, kw_only=True)
class Make:
    """A function that makes the same learner in every process."""

    objective: Objective = REINFORCE
    model: Literal["llama", "peaked", "gpt2", "adapter"] = "llama"
    dtype: torch.dtype = torch.float64
    settings: dict[str, Any] = field(default_factory=dict)
    kind: type[Learner] = Learner

    def __call__(self) -> Learner:
        model, reference = self._models()
        settings = {"lr": 0.01, "clip_norm": 0.5, "max_tokens": 40, **self.settings}
        return self.kind(
            model,
            objective=self.objective,
            settings=LearnerSettings(**settings),
            reference=reference if self.objective.reads_reference else None,
        )

    def _llama(self, seed: int) -> Any:
        made: Any = llama(seed=seed, max_position_embeddings=256)
        return made.to(self.dtype)

    def _models(self) -> tuple[PreTrainedModel, GivenReferences]:
        model: Any
        if self.objective.reference == "teacher":
            known = {"solver": self._llama(1), "proposer": self._llama(2)}
            return self._llama(0), {role: frozen_copy(made) for role, made in known.items()}
        if self.model == "gpt2":  # its input and output embeddings are tied
            torch.manual_seed(0)
            sizes: Any = {"vocab_size": 24, "n_positions": 64, "n_embd": 16}
            model = GPT2LMHeadModel(GPT2Config(**sizes, n_layer=2, n_head=4))
            model = model.to(self.dtype)
            return model, frozen_copy(model)
        model = self._llama(0)
        if self.model == "peaked":
            with torch.no_grad():
                model.get_output_embeddings().weight.mul_(100.0)
        if self.model in ("llama", "peaked"):
            return model, frozen_copy(self._llama(1))
        model.requires_grad_(False)
        made = adapted(model, Lora(rank=2), seed=0, where="policy")
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn_like(parameter.data).to(self.dtype) / 4
        moves = self.objective.reference == "ema"
        return made, frozen_copy(made) if moves else model


PAIRS = [
    replace(sample(prompt, completion, sign), pair=name)
    for name, prompt, good, bad in (("a", [1, 2, 3], [5, 6, 7], [4]), ("b", [7], [8, 9], [2, 2]))
    for completion, sign in ((good, 1.0), (bad, -1.0))
]
TEACHERS = PolicyLoss(kl=0.2, reference="teacher", estimator="exact")


def of_two_roles(given: list[Sample], every: int = 2) -> list[Sample]:
    """Return the samples with roles: each `every`-th one is a proposer's, the others a solver's."""
    roles = ["proposer" if n % every == 0 else "solver" for n in range(len(given))]
    pairs = zip(given, roles, strict=True)
    return [replace(one, turn=replace(one.turn, role=role)) for one, role in pairs]


EMA: dict[str, Any] = {"kl": 0.2, "reference": "ema", "ema_rate": 0.3}
EMA_LOSS = PolicyLoss(**EMA)
ONE = {"max_tokens": 10_000, "packing": "rows"}
"""Settings that give every rank one micro-batch."""
SEQUENCES = PolicyLoss(ratio="sequence", aggregate="sequence_mean", entropy=0.05)
RISING = Schedule(steps=(1, 2), values=(0.0, 0.2))
FALLING = Schedule(steps=(1, 2), values=(0.3, 0.0))

CASES: dict[str, tuple[Make, list[Sample]]] = {
    "reinforce": (Make(), batch()),
    "float32": (Make(dtype=torch.float32), batch()),
    "several steps": (Make(objective=PolicyLoss(), settings={"mini_batches": 3}), batch()),
    "several epochs": (
        Make(objective=PolicyLoss(), settings={"mini_batches": 2, "epochs": 2}),
        batch(),
    ),
    "sequences and entropy": (Make(objective=SEQUENCES), batch()),
    "one long micro-batch": (Make(settings={"max_tokens": 10_000}), batch()),
    "reference": (Make(objective=PolicyLoss(kl=0.2)), batch()),
    "teachers": (Make(objective=TEACHERS), of_two_roles(batch())),
    "a teacher of few": (Make(objective=TEACHERS), of_two_roles(batch(), every=9)),
    "ema": (Make(objective=EMA_LOSS), batch()),
    "exact KL": (Make(objective=PolicyLoss(kl=0.2, estimator="exact")), batch()),
    "forward KL, EMA": (Make(objective=PolicyLoss(**EMA, estimator="forward")), batch()),
    "exact KL, one embedding": (
        Make(model="gpt2", objective=PolicyLoss(kl=0.2, estimator="exact", entropy=0.1)),
        batch(),
    ),
    "weights with schedules": (
        Make(objective=PolicyLoss(kl=RISING, reference="ema", entropy=FALLING)),
        batch(),
    ),
    "correction": (Make(objective=replace(REINFORCE, correction="truncated")), batch()),
    "pairs": (Make(objective=DPO()), PAIRS),
    "adapter": (Make(model="adapter", objective=PolicyLoss(kl=0.2)), batch()),
    "adapter's EMA": (Make(model="adapter", objective=EMA_LOSS), batch()),
    "one embedding": (Make(model="gpt2", objective=PolicyLoss(kl=0.2)), batch()),
    "fewer samples than ranks": (Make(), batch(1)),
    "stems": (
        Make(settings={"packing": "trie", "max_tokens": 500}),
        batch(length=12, stem=LONG),
    ),
    "stems, computed again": (
        Make(settings={"packing": "trie", "max_tokens": 500, "activation_checkpointing": True}),
        batch(length=12, stem=LONG),
    ),
}


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def assert_close(
    found: torch.nn.Module, wanted: torch.nn.Module, make: Make, tolerance: float = 1e-4
) -> None:
    """Assert that two models have made the same changes to their initial parameters.

    The tolerance has two reasons. Norms and rotations of a llama are float32 in any dtype, and
    AdamW scales up a gradient that is only rounding error.
    """
    start, now, other = state(make().model), state(wanted), state(found)
    moved = [name for name in start if not torch.equal(start[name], now[name])]
    assert moved, "nothing was learned"
    for name in start:
        error, change = (other[name] - now[name]).norm(), (now[name] - start[name]).norm()
        assert error <= tolerance * change, f"{name}: error {error:.1e} of a change {change:.1e}"
