"""Tree sampling: several candidates at every stage, and which of them are continued."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Literal, get_args

from selfplay.curriculum import Curriculum
from selfplay.sampler import Play
from selfplay.sampler.independent import play_groups
from selfplay.sampler.stages import branch, figures, grow, stage_starts
from selfplay.seeds import derive
from selfplay.types import Episode, Group, Status

GoOn = Literal["all", "best", "random"]


class Tree:
    """At each of the first `depth` stages K candidates per node (2510.11062, 2508.04652).

    A candidate is what all agents of a stage did at once. Every candidate is played to the end of
    its episode, so its value is known as the mean return of the episodes through it: at first of
    the one that it was sampled in. `go_on` says which candidates of a node get K candidates of
    their own at the next stage: all of them (K^depth episodes), the best or a random one
    (K + (depth - 1)(K - 1) episodes). The best is that whose movers were paid most, in the mean,
    in the episode it was sampled in; a stage is then met in the proportion in which the best leads
    there, and not as play leads there.

    The replayed stages cost no tokens. Where an episode ends earlier, nothing branches off it.
    """

    tree: ClassVar[bool] = True

    def __init__(self, *, candidates: int = 4, depth: int = 2, go_on: GoOn = "all") -> None:
        """`candidates` is K."""
        if go_on not in get_args(GoOn):
            raise ValueError(f"sampler: go_on={go_on!r} is none of {get_args(GoOn)}")
        if candidates < 2 or depth < 1:
            raise ValueError("sampler: candidates is at least 2, depth at least 1")
        self.candidates, self.depth, self.go_on = candidates, depth, go_on
        self._played: list[Group] = []

    def sample(self, curriculum: Curriculum, play: Play, *, step: int, seed: int) -> list[Group]:
        """A tree for each of the step's tasks."""
        tasks = curriculum.tasks(step)
        groups = play_groups(tasks, play, size=self.candidates, seed=seed, step=step)
        fronts = [list(range(self.candidates)) for _ in groups]
        for stage in range(1, self.depth):
            jobs = []
            for number, group in enumerate(groups):
                rng = Random(derive(seed, "tree", step, group.id, stage))
                parents = self._continued(group, fronts[number], stage, rng)
                starts = [stage_starts(group.episodes[parent])[stage] for parent in parents]
                jobs.append(
                    [
                        branch(group, parent, start)
                        for parent, start in zip(parents, starts, strict=True)
                        for _ in range(self.candidates - 1)
                    ]
                )
                size = len(group.episodes)
                fronts[number] = [*parents, *range(size, size + len(jobs[-1]))]
            groups = grow(groups, jobs, play)
        self._played = groups
        curriculum.observe(groups, step)
        return groups

    def played(self) -> list[Group]:
        """The groups of the last call."""
        return self._played

    def metrics(self) -> dict[str, float]:
        """Episodes per tree, those that branched off another, and the share of shared turns."""
        leaves = sum(len(group.episodes) for group in self._played)
        return {"leaves": leaves / max(len(self._played), 1), **figures(self._played)}

    def _continued(
        self, group: Group, front: Sequence[int], stage: int, rng: Random
    ) -> Sequence[int]:
        """Those of the candidates in `front`, each the first of its node at `stage`, that get
        siblings there."""
        alive = [
            index
            for index in front
            if group.episodes[index].status is not Status.FAILED
            and len(stage_starts(group.episodes[index])) > stage
        ]
        if self.go_on == "all" or not alive:
            return alive
        if self.go_on == "random":
            return [rng.choice(alive)]
        return [max(alive, key=lambda index: movers_return(group.episodes[index], stage - 1))]


def movers_return(episode: Episode, stage: int) -> float:
    """What those who moved at a stage were paid in the episode, in the mean."""
    movers = {turn.agent for turn in episode.turns if turn.stage == stage}
    return sum(turn.reward for turn in episode.turns if turn.agent in movers) / len(movers)
