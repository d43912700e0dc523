"""A policy of a plan: the sizes and settings that determine its memory and time."""

from dataclasses import dataclass

from selfplay.plan.cluster import ClusterSpec
from selfplay.plan.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Member:
    """A policy's properties that determine memory and time."""

    outline: ModelShape
    """Shape of the model."""
    learns: bool = True
    """True if the policy has gradients and an optimizer."""
    rank: int = 0
    """Rank of the LoRA adapter; 0: all weights learn."""
    reference: bool = False
    """True if a reference policy is needed: the initial weights, an average of the weights, or
    teachers."""
    average: bool = False
    """True if the reference is an average of the weights; an adapter then has an averaged copy."""
    teachers: tuple[ModelShape, ...] = ()
    """Shapes of the teachers that are the reference, each once; empty for another reference."""
    frozen_bytes: int = 0
    """Bytes per number of frozen weights, such as an adapter's base; 0: `ClusterSpec.width`."""

    @property
    def own(self) -> int:
        """Number of weights that only this policy has: of its adapter, or all."""
        return self.outline.adapter(self.rank) if self.rank else self.outline.parameters

    @property
    def copied(self) -> bool:
        """True if the reference is a copy of the policy's own weights."""
        return self.reference and not self.teachers and (self.average or not self.rank)

    @property
    def base(self) -> tuple[object, ...]:
        """Key that is equal for adapters of one process that share their base.

        `load_policy` compares names of models and types. It also compares devices, which are the
        same for all, and chat templates, which a plan does not read.
        """
        return self.outline, self.outline.model, self.frozen_bytes

    def teacher_bytes(self, cluster: ClusterSpec, known: set[ModelShape]) -> int:
        """Return the bytes of the teachers' weights, in the type of the passes.

        Teachers in `known`, which other policies have too, count nothing; new ones are added.
        """
        new = [shape for shape in self.teachers if shape not in known]
        known.update(new)
        return cluster.width * sum(shape.parameters for shape in new)

    def frozen_width(self, cluster: ClusterSpec) -> int:
        """Return the bytes per number of weights that do not learn."""
        return self.frozen_bytes or cluster.width
