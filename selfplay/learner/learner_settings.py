"""The settings of a learner: its optimizer, and the way in which it computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from selfplay.errors import SettingError
from selfplay.learner.activation_checkpointing import Checkpointing
from selfplay.learner.packing import Packing
from selfplay.learner.precision import Precision
from selfplay.models.tree_attention import Kernel

LARGEST = 1e30
"""Largest setting: float32 still holds this number after AdamW divided it by a bias correction."""
RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda x: 0 <= x <= LARGEST, f"a finite number of at least 0 (at most {LARGEST:g})"),
    "betas": (lambda x: 0 <= x < 1, "a number of at least 0 and below 1"),
    "weight_decay": (lambda x: 0 <= x <= LARGEST, "a finite number of at least 0"),
    "clip_norm": (lambda x: 0 < x <= LARGEST, "a finite number above 0"),
    "warmup_steps": (lambda x: x >= 0, "at least 0"),
    "decay_steps": (lambda x: x >= 0, "at least 0"),
    "final_lr": (lambda x: 0 <= x <= 1, "a fraction from 0 to 1"),
    "mini_batches": (lambda x: x >= 1, "at least 1"),
    "epochs": (lambda x: x >= 1, "at least 1"),
    "max_tokens": (lambda x: x >= 1, "at least 1"),
    "max_skipped": (lambda x: x >= 0, "at least 0"),
}
"""Check of each numeric setting of a learner, and the condition in words for an error."""


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Settings of a `Learner`, which the config key `learner` makes.

    A policy can have others in `population.overrides`.
    """

    lr: float = 1e-6
    """AdamW's highest learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    clip_norm: float = 1.0
    """Largest gradient norm; finite, so that one bad batch has a bounded step."""
    warmup_steps: int = 0
    """Optimizer steps until the full learning rate, which is reached linearly."""
    decay_steps: int = 0
    """Optimizer steps until the last learning rate, `final_lr` times `lr`; the rate falls linearly
    from the first step on. 0: the rate does not fall."""
    final_lr: float = 0.1
    """Last learning rate, as a fraction of `lr`."""
    mini_batches: int = 1
    """Optimizer steps per pass over a batch of samples, each on another part of it."""
    epochs: int = 1
    """Passes over a batch of samples (PPO's epochs, GRPO's mu). Above 1, an objective needs a ratio
    (`objective.ratio`), because the weights that sampled have then changed."""
    max_tokens: int = 16_384
    """Largest number of tokens of one forward pass, with padding; a longer sample has its own
    pass."""
    precision: Precision = "auto"
    """Type in which forward and backward passes compute: float32, bfloat16, or auto, which is
    bfloat16 on a GPU. Weights and optimizer stay in float32, and so does the output embedding."""
    packing: Packing = "auto"
    """Rows for samples that share prefixes: auto (one row if that is cheaper), trie (one row if it
    saves a token), rows (a row per sample)."""
    attention: Kernel | None = None
    """Attention kernel while learning: sdpa, eager, flex_attention or flash_attention_2; None for
    the one that the model was loaded with."""
    activation_checkpointing: Checkpointing = "auto"
    """True recomputes blocks in the backward pass, which saves the memory of their inner
    activations; auto: on a GPU, if the model supports it."""
    max_skipped: int = 5
    """Maximum number of optimizer steps in a row that are skipped because their loss or gradient is
    not finite; one more ends the run. 0: the first one ends it."""

    @property
    def updates(self) -> int:
        """Number of optimizer steps per batch."""
        return self.mini_batches * self.epochs

    def __post_init__(self) -> None:
        for name, (fits, needed) in RANGES.items():
            value = getattr(self, name)
            for number in value if name == "betas" else (value,):
                if not fits(number):
                    raise SettingError(f"{name}: {number:g} does not fit: {needed} is needed")

    def warmup_note(self, steps: int) -> str | None:
        """Return a line if the learning rate is still rising at the end of a run of `steps`."""
        updates = steps * self.updates
        if not updates or self.warmup_steps <= updates:
            return None
        return (
            f"learner.warmup_steps: {self.warmup_steps} is more than the {updates} optimizer steps "
            f"of run.steps={steps}, so that the learning rate ends at "
            f"{updates / self.warmup_steps:.2g} of learner.lr"
        )
