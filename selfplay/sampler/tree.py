"""Tree sampling: several candidates at every stage, and which of them are continued.

Stages of recorded episodes, and the jobs and groups that branch off them.

Branching: some episodes from the start, the others from stages in the middle of those.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar, Literal, TypeAlias, get_args

from selfplay.curriculum import Curriculum
from selfplay.rng import derive
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.sampler.independent import play_groups
from selfplay.types import Episode, Group, Status, Turn


def stage_starts(episode: Episode) -> list[int]:
    """Where each stage begins: the index of its first turn."""
    stages = [turn.stage for turn in episode.turns]
    return [i for i, stage in enumerate(stages) if i == 0 or stage != stages[i - 1]]


def branch(group: Group, parent: int, start: int) -> EpisodeSpec:
    """An episode that shares the turns before `start` with a sibling."""
    episode = group.episodes[parent]
    job = again(episode)
    return replace(job, prefix_turns=episode.turns[:start], branch_of=parent)


def again(episode: Episode) -> EpisodeSpec:
    """An episode from the same beginning, played by the same policies."""
    return EpisodeSpec(task=episode.task, seed=episode.seed, policy_map=episode.policy_map)


def grow(
    groups: Sequence[Group], specs: Sequence[Sequence[EpisodeSpec]], rollout_fn: RolloutFn
) -> list[Group]:
    """The groups with more siblings: those of `specs`, played all at once."""
    numbered = [
        replace(job, member=len(group.episodes) + number)
        for group, more in zip(groups, specs, strict=True)
        for number, job in enumerate(more)
    ]
    played = iter(rollout_fn(numbered))
    return [
        replace(group, episodes=(*group.episodes, *(next(played) for _ in more)))
        for group, more in zip(groups, specs, strict=True)
    ]


def branch_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`branches`: episodes that branched off a sibling; `shared_turns`: the share of all turns that
    they did not play themselves."""
    episodes = [episode for group in groups for episode in group.episodes]
    turns = sum(len(episode.turns) for episode in episodes)
    return {
        "branches": float(sum(episode.branch_of is not None for episode in episodes)),
        "shared_turns": sum(episode.shared_turns for episode in episodes) / max(turns, 1),
    }


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

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """The step's tasks, each played G times."""
        tasks = curriculum.tasks(step)
        groups = play_groups(tasks, rollout_fn, size=self.initial, seed=seed, step=step)
        budget = self.group_size - self.initial
        jobs: list[list[EpisodeSpec]] = []
        for group in groups:
            forks = self._forks(group, budget, Random(derive(seed, "branch", step, group.id)))
            fresh = [again(group.episodes[0])] * (budget - len(forks))
            jobs.append([*(branch(group, parent, start) for parent, start in forks), *fresh])
        self._played = grow(groups, jobs, rollout_fn)
        curriculum.observe(self._played, step)
        return self._played

    def played(self) -> list[Group]:
        """The groups of the last call."""
        return self._played

    def metrics(self) -> dict[str, float]:
        """Episodes that branched off another, and the share of turns that were shared."""
        return branch_metrics(self._played)

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

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """A tree for each of the step's tasks."""
        tasks = curriculum.tasks(step)
        groups = play_groups(tasks, rollout_fn, size=self.candidates, seed=seed, step=step)
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
            groups = grow(groups, jobs, rollout_fn)
        self._played = groups
        curriculum.observe(groups, step)
        return groups

    def played(self) -> list[Group]:
        """The groups of the last call."""
        return self._played

    def metrics(self) -> dict[str, float]:
        """Episodes per tree, those that branched off another, and the share of shared turns."""
        leaves = sum(len(group.episodes) for group in self._played)
        return {"leaves": leaves / max(len(self._played), 1), **branch_metrics(self._played)}

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
