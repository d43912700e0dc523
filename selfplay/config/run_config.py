"""Settings of the run itself, and the setup of torch."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Literal

from selfplay.config.garbage import collect_rarely
from selfplay.config.threads import default_count
from selfplay.errors import ConfigError

MOST_THREADS = 1024
"""Largest number of threads; far more would crash the operating system's thread library."""
LONGEST_NAME = 200
"""Largest number of bytes of a run's name: file names have at most 255, and the names of files
next to the run are longer than the run's name."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Length of a run, intervals of records and conditions to stop, for the training loop."""

    steps: int
    """Number of training steps."""
    name: str | None = None
    """Name of the run folder; None: made from the experiment, the seed and the time."""
    folder: str = "runs"
    """Folder of the run folders."""
    experiment: str = "train"
    """Name of the experiment, for reports."""
    checkpoint_every: int = 10
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints that are kept."""
    async_checkpoints: bool = False
    """True to copy the state at a checkpoint to main memory and to write the copy in a thread while
    training goes on. The copy takes the memory of the trained weights, their optimizer and an EMA
    until it is written. Learner ranks do the same with their parts. A thread needs a free core."""
    episodes_every: int = 1
    """Steps between records of all episodes; 0 records only failed ones."""
    threads: int = 0
    """Number of torch threads; 0: OMP_NUM_THREADS, or one for each core that this process may use.
    With 0, `selfplay train` begins a run with one for each core that other processes leave free."""
    deterministic: bool | Literal["auto"] = "auto"
    """True to use only kernels with reproducible results, which are slower on a GPU; auto: True if
    torch sees no GPU."""
    max_failed_fraction: float = 0.1
    """Largest fraction of failed episodes; the run stops above it."""
    minimum: Mapping[str, float] = field(default_factory=dict)
    """Metric name to the value below which the run stops as collapsed."""

    def __post_init__(self) -> None:
        floors = {"steps": 0, "checkpoint_every": 1, "keep_checkpoints": 1, "episodes_every": 0}
        for name, floor in floors.items():
            if getattr(self, name) < floor:
                raise ValueError(f"{name} is at least {floor}, not {getattr(self, name)}")
        if not 0 <= self.threads <= MOST_THREADS:
            raise ValueError(f"threads is between 0 and {MOST_THREADS}, not {self.threads}")
        for name, least in self.minimum.items():
            if not isfinite(least):
                raise ValueError(f"minimum.{name}: {least} is not a finite number")
        if not 0.0 <= self.max_failed_fraction <= 1.0:
            raise ValueError(f"max_failed_fraction lies in [0, 1], not {self.max_failed_fraction}")

    def keeps_checkpoint(self, step: int) -> bool:
        """Return True if a checkpoint is written after this step."""
        return step % self.checkpoint_every == 0 or step == self.steps

    def keeps_episodes(self, step: int) -> bool:
        """Return True if the episodes of this step are recorded."""
        return bool(self.episodes_every) and step % self.episodes_every == 0


def run_folder(run: Mapping[str, object], name: str | None = None) -> Path:
    """Return the folder of a new run: `run.folder`/`run.name`.

    A name is one folder and never a path, so that it cannot leave `run.folder`. It consists of
    letters, digits and `_`, and after the first character also of `-`, `.`, `+`, `,` and `=`, so
    that shells and the notation RUN@STEP parse it as one word. `run.folder` may be any absolute
    path, or a relative one that stays in the current folder.

    Args:
        run: The config's settings of the run.
        name: The run's name; by default `run.name`. If both are None, the result is `run.folder`.
    Raises:
        ConfigError: For a folder or a name that does not fit.
    """
    folder = str(run.get("folder", "runs"))
    if not folder or folder.startswith("~"):
        raise ConfigError(f"run.folder: {folder!r} does not fit: write the folder's path in full")
    if not Path(folder).is_absolute() and ".." in Path(folder).parts:
        raise ConfigError(
            f"run.folder: {folder!r} leads out of the current folder: write the path in full"
        )
    if not name:
        _refuse_name(str(run.get("experiment", "train")), where="run.experiment", parts=True)
    found = name or run.get("name")
    if found is None:
        return Path(folder)
    _refuse_name(str(found), where="run.name")
    return Path(folder) / str(found)


def _refuse_name(name: str, *, where: str, parts: bool = False) -> None:
    """Raise ConfigError for an invalid name; `parts` allows several parts, such as tiny/kuhn."""
    one = r"\w[\w.+,=-]*"
    pattern = f"{one}(/{one})*" if parts else one
    if not re.fullmatch(pattern, name) or len(name.encode()) > LONGEST_NAME:
        shown = ascii(name if len(name) <= 60 else f"{name[:60]}...")
        raise ConfigError(
            f"{where}: {shown} does not fit: a name has at most {LONGEST_NAME} letters, digits and "
            "_ - . + , = and begins with a letter, a digit or _"
        )


def set_up_process(settings: RunSettings, seed: int) -> None:
    """Set threads, kernels and seed of torch, and how often Python searches for cycles of objects,
    for a run and for its warm start."""
    import torch
    from transformers.utils import logging as transformers_logging

    collect_rarely()
    own = torch.get_num_threads()
    threads = settings.threads or default_count(own)
    if settings.threads or threads < own:
        torch.set_num_threads(threads)
    # The run's own progress lines replace the bars for every file.
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    deterministic = settings.deterministic
    if deterministic == "auto":
        deterministic = not torch.cuda.is_available()
    if deterministic:
        # Without this variable, deterministic kernels refuse matrix products on a GPU. It is read
        # when the first kernel runs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=False)
    # By default, torch then fills every new tensor with NaN, a fifth of the time of an update. No
    # code here reads memory that nothing wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
