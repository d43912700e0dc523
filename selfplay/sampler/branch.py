"""Branching: some episodes from the start, the others from stages in the middle of those."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Literal, TypeAlias, get_args

from selfplay.curriculum import Curriculum
from selfplay.rollout import Job
from selfplay.sampler import Play
from selfplay.sampler.independent import play_groups
from selfplay.sampler.stages import again, branch, figures, grow, stage_starts
from selfplay.seeds import derive
from selfplay.types import Episode, Group, Status, Turn

Where = Literal["uniform", "surprisal"]
Fork: TypeAlias = tuple[int, int]
"""(episode, first of its turns that a branch plays anew)."""


class Branch:
    """Per task `initial` whole episodes, then branches of them, up to G (2507.19849).

    A branch replays the stages before its fork and plays on with seeds of its own. Forks lie
    before any stage but the first. uniform: any of them. surprisal: those where the policies'
    next tokens were most surprising compared with the episode's first stage, if by more than
    `threshold` nats per token. That is the mean of -log p over the first `tokens` tokens that were
    sampled, which estimates the rise of their entropy from a single sample; the paper computes
    entropies from the ten likeliest tokens at each place, decides while it generates, and
    branches from branches too.

    What the forks leave of the budget are more episodes from the start.
    """

    tree: ClassVar[bool] = True

    def __init__(
        self,
        *,
        group_size: int = 8,
        initial: int = 4,
        where: Where = "uniform",
        width: int = 1,
        threshold: float = 0.0,
        tokens: int = 20,
    ) -> None:
        """`group_size` is G; `width` is the number of branches that one fork may get."""
        if where not in get_args(Where):
            raise ValueError(f"sampler: no place to branch {where!r}; {get_args(Where)} are known")
        if not 1 <= initial < group_size:
            raise ValueError(
                f"sampler: initial is at least 1 and below group_size {group_size}, not {initial}"
            )
        if width < 1 or tokens < 1:
            raise ValueError("sampler: width and tokens are at least 1")
        self.group_size, self.initial, self.where = group_size, initial, where
        self.width, self.threshold, self.tokens = width, threshold, tokens
        self._played: list[Group] = []

    def sample(self, curriculum: Curriculum, play: Play, *, step: int, seed: int) -> list[Group]:
        """The step's tasks, each played G times."""
        tasks = curriculum.tasks(step)
        groups = play_groups(tasks, play, size=self.initial, seed=seed, step=step)
        budget = self.group_size - self.initial
        jobs: list[list[Job]] = []
        for group in groups:
            forks = self._forks(group, budget, Random(derive(seed, "branch", step, group.id)))
            fresh = [again(group.episodes[0])] * (budget - len(forks))
            jobs.append([*(branch(group, parent, start) for parent, start in forks), *fresh])
        self._played = grow(groups, jobs, play)
        curriculum.observe(self._played, step)
        return self._played

    def played(self) -> list[Group]:
        """The groups of the last call."""
        return self._played

    def metrics(self) -> dict[str, float]:
        """Episodes that branched off another, and the share of turns that were shared."""
        return figures(self._played)

    def _forks(self, group: Group, budget: int, rng: Random) -> list[Fork]:
        forks = [
            (index, start)
            for index, episode in enumerate(group.episodes)
            if episode.status is not Status.FAILED
            for start in stage_starts(episode)[1:]
        ]
        if self.where == "uniform":
            return rng.sample(forks * self.width, min(budget, len(forks) * self.width))
        rises = {fork: self._rise(group.episodes[fork[0]], fork[1]) for fork in forks}
        ranked = sorted(forks, key=lambda fork: -rises[fork])
        chosen = [fork for fork in ranked if rises[fork] > self.threshold]
        return [fork for fork in chosen for _ in range(self.width)][:budget]

    def _rise(self, episode: Episode, start: int) -> float:
        """How much more surprising the stage that begins at `start` was than the first, in nats."""
        stages = [episode.turns[0].stage, episode.turns[start].stage]
        first, then = ([t for t in episode.turns if t.stage == stage] for stage in stages)
        return self._surprisal(then) - self._surprisal(first)

    def _surprisal(self, turns: Sequence[Turn]) -> float:
        logprobs = [p for turn in turns for p in turn.logprobs[: self.tokens]]
        return -sum(logprobs) / max(len(logprobs), 1)
