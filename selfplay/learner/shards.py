"""What a learner knows beside its weights, written and read by each rank in part.

The files are those of torch.distributed.checkpoint. Each rank writes what it has, and any number of
ranks reads what it needs of them, so that no process ever holds all of an optimizer.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import load as read
from torch.distributed.checkpoint import save as write
from torch.distributed.checkpoint.api import CheckpointException

from selfplay.errors import RunError, one_line
from selfplay.learner.learner import Learner, moving
from selfplay.learner.shard_reader import PlainReader
from selfplay.learner.sharded import learned, like

STEPS = "steps"
ADAM = "optimizer"
MAGNET = "magnet"


def save(learner: Learner, folder: Path) -> dict[str, str]:
    """Write this rank's part; returns the SHA-256 of its files by name. All ranks save together."""
    state: dict[str, Tensor] = {STEPS: torch.tensor(learner.steps)}
    for name, parameter in learned(learner.model).items():
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            state[f"{ADAM}/{name}/{key}"] = value
    state |= {f"{MAGNET}/{name}": mean for name, mean in _magnet(learner).items()}
    try:
        write(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    except (CheckpointException, OSError) as error:
        raise RunError(f"cannot write to {folder}: {_cause(error)}") from error
    rank = dist.get_rank() if dist.is_initialized() else 0
    own = [*folder.glob(f"__{rank}_*"), *([folder / ".metadata"] if rank == 0 else [])]
    return {path.name: _hash(path) for path in own}


def load(learner: Learner, folder: Path) -> None:
    """Take over what was saved, by however many ranks. All ranks load together."""
    try:
        known: Mapping[str, Any] = PlainReader(folder).read_metadata().state_dict_metadata
    except (CheckpointException, OSError) as error:
        raise RunError(f"cannot read {folder}: {_cause(error)}; every rank must see it") from error
    parameters = learned(learner.model)
    state: dict[str, Tensor] = {STEPS: torch.tensor(0)}
    for place, entry in known.items():
        kind, _, rest = place.partition("/")
        if kind == ADAM:
            name, _, key = rest.rpartition("/")
            if name not in parameters:
                raise RunError(
                    f"{folder}: it has an optimizer of {name}, which does not learn here; resume "
                    "with the policy that the run began with"
                )
            pattern = parameters[name]
            cut = tuple(entry.size) == tuple(pattern.shape)
            made = torch.zeros_like(pattern) if cut else torch.zeros(entry.size)
            state[place] = made.detach().to(entry.properties.dtype)
    state |= {f"{MAGNET}/{name}": mean for name, mean in _magnet(learner).items()}
    try:
        read(state, storage_reader=PlainReader(folder), no_dist=not dist.is_initialized())
    except (CheckpointException, OSError, RuntimeError) as error:
        raise RunError(f"cannot read {folder}: {_cause(error)}") from error
    learner.steps = int(state[STEPS])
    learner.optimizer.state.clear()
    for place, value in state.items():
        kind, _, rest = place.partition("/")
        if kind == ADAM:
            name, _, key = rest.rpartition("/")
            learner.optimizer.state[parameters[name]][key] = value


def take(learner: Learner, state: Mapping[str, Any]) -> None:
    """Take over the state of a learner that is one process, cut as this one's tensors are."""
    learner.steps = state["steps"]
    learner.optimizer.state.clear()
    for number, values in state["optimizer"]["state"].items():
        parameter = learner.parameters[int(number)]
        learner.optimizer.state[parameter] = {
            # A copy, because a shard that is a view would keep all of what was given.
            key: (like(parameter, value) if value.shape == parameter.shape else value).clone()
            for key, value in values.items()
        }
    with torch.no_grad():
        for name, mean in _magnet(learner).items():
            mean.copy_(like(mean, state["magnet"][name]))


def _magnet(learner: Learner) -> dict[str, Tensor]:
    if learner.reference is None or learner.objective.reference != "magnet":
        return {}
    return {name: mean for name, mean, _ in moving(learner.reference, learner.model)}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cause(error: BaseException) -> str:
    """What went wrong on the first rank that it went wrong on."""
    failures = getattr(error, "failures", None)
    inner = next(iter(failures.values()))[0] if failures else error
    return one_line(inner)
