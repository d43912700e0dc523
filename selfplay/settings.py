"""Settings of the run itself, and torch as they want it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long, how often, and when to stop."""

    steps: int
    """Training steps."""
    name: str | None = None
    """Name of the run folder; made from the experiment and the time where None."""
    folder: str = "runs"
    """Where run folders go."""
    experiment: str = "train"
    """Name of the experiment, for reports."""
    checkpoint_every: int = 10
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Newest checkpoints that stay."""
    episodes_every: int = 1
    """Steps between records of all episodes; 0 records none."""
    threads: int = 0
    """Torch threads; 0 leaves torch's own choice."""
    deterministic: bool = True
    """Only kernels that give the same numbers every time."""
    max_failed_share: float = 0.1
    """Share of failed episodes at which the run stops."""
    minimum: Mapping[str, float] = field(default_factory=dict)
    """Figure name to the value below which the run stops as collapsed."""

    def __post_init__(self) -> None:
        if self.steps < 0 or self.checkpoint_every < 1 or self.keep_checkpoints < 1:
            raise ValueError(
                "steps is at least 0, checkpoint_every and keep_checkpoints at least 1"
            )
        if self.episodes_every < 0 or self.threads < 0:
            raise ValueError("episodes_every and threads are not negative")
        if not 0.0 <= self.max_failed_share <= 1.0:
            raise ValueError(f"max_failed_share lies in [0, 1], not {self.max_failed_share}")

    def keeps_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is written after this step."""
        return step % self.checkpoint_every == 0 or step == self.steps

    def keeps_episodes(self, step: int) -> bool:
        """Whether the episodes of this step are recorded."""
        return bool(self.episodes_every) and step % self.episodes_every == 0


def set_up_torch(settings: Settings, seed: int) -> None:
    """Threads, kernels and seed, for a run and for the warm start before it."""
    import torch
    from transformers.utils import logging as transformers_logging

    if settings.threads:
        torch.set_num_threads(settings.threads)
    # One line of our own says more than a bar for every file that is read or written.
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    if settings.deterministic:
        # Without it, deterministic kernels refuse matrix products on a GPU. Read when the first
        # of them runs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=False)
