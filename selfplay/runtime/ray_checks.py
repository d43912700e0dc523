"""Checks of the arguments of `RayRuntime`, which need neither Ray nor a cluster."""

import math
from collections.abc import Mapping
from typing import get_args

from selfplay.errors import nearest
from selfplay.learner.state_copies import Replicas
from selfplay.runtime.placement import WorkerType

LEAST: Mapping[str, int] = {"workers": 1, "chunks": 1}
"""Smallest value of the numbers that must not be 0."""


def check_numbers(numbers: Mapping[str, float | None]) -> None:
    """Raise ValueError for a number that is too small or not finite; None is not checked."""
    for name, value in numbers.items():
        if value is None:
            continue
        least = LEAST.get(name, 0)
        if not value >= least:  # also if it is NaN
            raise ValueError(f"{name} must be at least {least}, not {value}")
        if value == math.inf:
            raise ValueError(f"{name} must be finite, not {value}")


def check_seconds(limits: Mapping[str, float]) -> None:
    """Raise ValueError for a time limit that is not a positive, finite number of seconds."""
    for name, seconds in limits.items():
        if not 0 < seconds < math.inf:
            raise ValueError(f"{name} must be a positive number of seconds, not {seconds}")


def check_ranks(
    ranks: int, *, learners: int | None, learner_gpus: float | None, replicas: Replicas
) -> None:
    """Raise ValueError for settings that do not fit the number of ranks.

    Args:
        ranks: Number of learner ranks; 1 if the driver learns.
        learners: Number of ranks, if set.
        learner_gpus: GPUs of each rank, if set.
        replicas: Number of copies of the learners' state, or auto.
    """
    if learners == 0 and learner_gpus:
        raise ValueError(
            "learner_gpus needs learner ranks, and learners=0 has none; set learners to at least 1"
        )
    if isinstance(replicas, str):
        if replicas != "auto":
            raise ValueError(f"replicas must be auto or a number of copies, not {replicas!r}")
    elif replicas < 1:
        raise ValueError(f"replicas must be auto or at least 1, not {replicas}")
    elif ranks % replicas:
        raise ValueError(f"replicas must divide the {ranks} rank(s), and {replicas} does not")
    if (learners or 0) > 1 and learner_gpus and learner_gpus != int(learner_gpus):
        raise ValueError(
            f"learner_gpus must be a whole number for several ranks, not {learner_gpus}"
        )


def check_worker_dtype(dtype: str) -> None:
    """Raise ValueError for an unknown type of the weights in workers."""
    if dtype not in get_args(WorkerType):
        hint = nearest(str(dtype), get_args(WorkerType))
        raise ValueError(f"worker_dtype: unknown type {dtype!r}; {hint}")
