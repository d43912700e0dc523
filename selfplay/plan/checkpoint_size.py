"""Size of a run's checkpoints on the disk."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from selfplay.config.instantiate import build
from selfplay.plan.host_memory import FLOAT32, MOMENTS
from selfplay.plan.member import Member


@dataclass(frozen=True, kw_only=True)
class KeptCheckpoints:
    """The checkpoints that a run has on the disk at once."""

    kept: int
    """Number of checkpoints that are kept, at most as many as the run writes."""
    most: int
    """Number while a checkpoint is written: the oldest is removed when the newest is complete."""
    background: bool = False
    """True if a thread writes a copy of the state that is in main memory."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "KeptCheckpoints":
        """Return the checkpoints of a run with this config."""
        run = build(config["run"], where="run")
        # One before the first step, and those of `RunSettings.keeps_checkpoint`.
        written = 1 + run.steps // run.checkpoint_every + bool(run.steps % run.checkpoint_every)
        keep = int(run.keep_checkpoints)
        return cls(
            kept=min(keep, written),
            most=min(keep + 1, written),
            background=bool(run.async_checkpoints),
        )


@dataclass(frozen=True, kw_only=True)
class DiskPlan:
    """Bytes of checkpoints on the disk."""

    checkpoint: float
    """Bytes of one checkpoint."""
    total: float
    """Bytes of all checkpoints, with the one that is being written."""
    kept: int
    """Number of checkpoints that are kept."""
    most: int
    """Number of checkpoints while one of them is written."""


def plan_disk(
    members: Mapping[str, Member], frozen: Collection[str], run: KeptCheckpoints
) -> DiskPlan:
    """Plan the disk for checkpoints, as `CheckpointContent` and the learners' states fill them.

    A weight that learns takes 12 bytes, for its float32 value and two float32 moments, and 4 more
    if an average of the weights is the reference. A frozen policy is written in its own type
    (adapters in float32) with every checkpoint. A base that a warm start made is on the disk once,
    because later checkpoints link to it; another base is not written.

    Args:
        members: Policies by name.
        frozen: Names of the population's policies that do not learn. Other members that do not
            learn are opponents, which no checkpoint has.
        run: The checkpoints of the run.
    """
    each, bases = 0.0, dict[object, float]()
    for name, member in members.items():
        if not member.learns and name not in frozen:
            continue
        width = member.frozen_bytes or FLOAT32
        if member.learns:
            averaged = member.reference and member.average
            each += (FLOAT32 + MOMENTS + FLOAT32 * averaged) * member.own
        else:
            each += (FLOAT32 if member.rank else width) * member.own
        if member.rank and not member.outline.model:
            bases[member.base] = float(width * member.outline.parameters)
    shared = sum(bases.values())
    return DiskPlan(
        checkpoint=each + shared, total=run.most * each + shared, kept=run.kept, most=run.most
    )
