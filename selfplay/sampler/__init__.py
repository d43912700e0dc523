"""How the episodes of a group are sampled."""

from typing import ClassVar, Protocol

from selfplay.curriculum import Curriculum
from selfplay.rollout.rollout import RolloutFn
from selfplay.types import Group


class Sampler(Protocol):
    """Groups of episodes for one step."""

    tree: ClassVar[bool]
    """Whether episodes branch off one another, as some credit methods need."""

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """The groups to learn from. The curriculum has been told of all that were played."""
        ...

    def played(self) -> list[Group]:
        """All groups of the last call, those that are not learned from too.

        Figures and records are about these: a choice among them is no fair picture.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Figures of the last call."""
        ...
