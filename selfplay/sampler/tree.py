"""Samplers of branching episodes, which replay the first stages of a sibling and then play on.

`Branch` forks whole episodes at some stages; `Tree` plays several candidates at each of the first
stages and continues some of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar, Literal, TypeAlias, get_args

from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import show, tasks_of
from selfplay.errors import check_choice
from selfplay.rng import derive
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.sampler.base import GroupSampler
from selfplay.sampler.independent import play_groups
from selfplay.types import Episode, Group, Status, Turn


def stage_starts(episode: Episode) -> list[int]:
    """Return the index of the first turn of each stage."""
    stages = [turn.stage for turn in episode.turns]
    return [i for i, stage in enumerate(stages) if i == 0 or stage != stages[i - 1]]


def branch(group: Group, parent: int, start: int) -> EpisodeSpec:
    """Return the spec of an episode that shares the turns before `start` with a sibling."""
    episode = group.episodes[parent]
    spec = again(episode)
    return replace(spec, prefix_turns=episode.turns[:start], branch_of=parent)


def again(episode: Episode) -> EpisodeSpec:
    """Return the spec of an episode with the same task, seed and policies."""
    return EpisodeSpec(task=episode.task, seed=episode.seed, policy_map=episode.policy_map)


def grow(
    groups: Sequence[Group], specs: Sequence[Sequence[EpisodeSpec]], rollout_fn: RolloutFn
) -> list[Group]:
    """Return the groups with more siblings: the episodes of `specs`, played all at once."""
    numbered = [
        replace(spec, member=len(group.episodes) + number)
        for group, more in zip(groups, specs, strict=True)
        for number, spec in enumerate(more)
    ]
    played = iter(rollout_fn(numbered))
    return [
        replace(group, episodes=(*group.episodes, *(next(played) for _ in more)))
        for group, more in zip(groups, specs, strict=True)
    ]


def branch_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return `branches`, the number of episodes that branched off a sibling, and `shared_turns`,
    the fraction of all turns that were replayed."""
    episodes = [episode for group in groups for episode in group.episodes]
    turns = sum(len(episode.turns) for episode in episodes)
    return {
        "branches": float(sum(episode.branch_of is not None for episode in episodes)),
        "shared_turns": sum(episode.shared_turns for episode in episodes) / max(turns, 1),
    }


Where = Literal["uniform", "surprisal"]
Fork: TypeAlias = tuple[int, int]
"""(index of the episode, index of the first turn that a branch plays itself)."""


class Branch(GroupSampler):
    """Plays `initial` whole episodes per task, then branches of them, up to G episodes
    (2507.19849).

    A branch replays the stages before its fork and continues with seeds of its own. A fork lies
    before any stage except the first. uniform: any of these stages. surprisal: the stages where the
    policies' next tokens were most surprising compared with the episode's first stage, if the rise
    is more than `threshold` nats per token. Surprisal is the mean of -log p over the first `tokens`
    sampled tokens of each turn, an estimate of the entropy from a single sample. The paper computes
    entropies from the ten likeliest tokens at each position, decides during generation, and also
    branches from branches.

    If there are too few forks, the remaining episodes are played from the start.
    """

    keeps_all: ClassVar[bool] = True
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
        """Args:
        group_size: G, episodes per task.
        initial: Whole episodes per task.
        where: uniform or surprisal.
        width: Largest number of branches of one fork.
        threshold: Rise of surprisal that a fork must exceed, in nats per token.
        tokens: Number of tokens at the start of a turn over which surprisal is averaged.
        """
        check_choice("where", where, get_args(Where))
        if not 1 <= initial < group_size:
            raise ValueError(
                f"initial must be at least 1 and below group_size={group_size}, not {initial}"
            )
        if width < 1 or tokens < 1:
            raise ValueError("width and tokens must be at least 1")
        self.group_size, self.initial, self.where = group_size, initial, where
        self.width, self.threshold, self.tokens = width, threshold, tokens

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """Return the step's tasks, each played G times."""
        tasks = tasks_of(curriculum, step)
        groups = play_groups(tasks, rollout_fn, size=self.initial, seed=seed, step=step)
        budget = self.group_size - self.initial
        specs: list[list[EpisodeSpec]] = []
        for group in groups:
            forks = self._forks(group, budget, Random(derive(seed, "branch", step, group.id)))
            fresh = [again(group.episodes[0])] * (budget - len(forks))
            specs.append([*(branch(group, parent, start) for parent, start in forks), *fresh])
        grown = grow(groups, specs, rollout_fn)
        self._played = grown
        show(curriculum, grown, step)
        return grown

    def metrics(self) -> dict[str, float]:
        """Return the number of branches, and the fraction of turns that were replayed."""
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
        """Return the surprisal of the stage that begins at `start` minus that of the first stage,
        in nats per token."""
        stages = [episode.turns[0].stage, episode.turns[start].stage]
        first, then = ([t for t in episode.turns if t.stage == stage] for stage in stages)
        return self._surprisal(then) - self._surprisal(first)

    def _surprisal(self, turns: Sequence[Turn]) -> float:
        logprobs = [p for turn in turns for p in turn.logprobs[: self.tokens]]
        return -sum(logprobs) / max(len(logprobs), 1)


GoOn = Literal["all", "best", "random"]


class Tree(GroupSampler):
    """Plays K candidates per node at each of the first `depth` stages (2510.11062, 2508.04652).

    A candidate is the joint action of all agents of a stage. Every candidate is played to the end
    of its episode, so its value is the mean return of the episodes that contain it. At the
    time of the selection, each candidate belongs to exactly one episode, in which it was sampled.
    `go_on` selects the candidates of a node that get K candidates at the next stage: all of them
    (K^depth episodes), the best or a random one (K + (depth - 1)(K - 1) episodes). The best
    candidate is the one whose acting agents have the largest mean return in the episode in which it
    was sampled. With best, later stages are visited as often as the best candidate leads to them,
    and not as often as the policies would reach them.

    The replayed stages cost no tokens. An episode that ends earlier gets no branches.
    """

    keeps_all: ClassVar[bool] = True
    tree: ClassVar[bool] = True

    def __init__(self, *, candidates: int = 4, depth: int = 2, go_on: GoOn = "all") -> None:
        """Args:
        candidates: K, candidates per node.
        depth: Number of stages with candidates.
        go_on: Candidates that are continued: all, best or random.
        """
        check_choice("go_on", go_on, get_args(GoOn))
        if candidates < 2 or depth < 1:
            raise ValueError("candidates must be at least 2, and depth at least 1")
        self.candidates, self.depth, self.go_on = candidates, depth, go_on

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """Return a tree for each of the step's tasks."""
        tasks = tasks_of(curriculum, step)
        groups = play_groups(tasks, rollout_fn, size=self.candidates, seed=seed, step=step)
        fronts = [list(range(self.candidates)) for _ in groups]
        for stage in range(1, self.depth):
            specs = []
            for number, group in enumerate(groups):
                rng = Random(derive(seed, "tree", step, group.id, stage))
                parents = self._continued(group, fronts[number], stage, rng)
                starts = [stage_starts(group.episodes[parent])[stage] for parent in parents]
                specs.append(
                    [
                        branch(group, parent, start)
                        for parent, start in zip(parents, starts, strict=True)
                        for _ in range(self.candidates - 1)
                    ]
                )
                size = len(group.episodes)
                fronts[number] = [*parents, *range(size, size + len(specs[-1]))]
            groups = grow(groups, specs, rollout_fn)
        self._played = groups
        show(curriculum, groups, step)
        return groups

    def metrics(self) -> dict[str, float]:
        """Return episodes per tree, the number of branches, and the fraction of turns that were
        replayed."""
        leaves = sum(len(group.episodes) for group in self._played)
        return {"leaves": leaves / max(len(self._played), 1), **branch_metrics(self._played)}

    def _continued(
        self, group: Group, front: Sequence[int], stage: int, rng: Random
    ) -> Sequence[int]:
        """Return the candidates in `front` that get siblings at `stage`.

        `front` holds the first episode of each node at that stage.
        """
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
    """Return the mean over the agents that moved at a stage of their returns in the episode."""
    movers = {turn.agent for turn in episode.turns if turn.stage == stage}
    return sum(turn.reward for turn in episode.turns if turn.agent in movers) / len(movers)
