"""Adaptive sampling: more episodes of tasks that seldom succeed, in rounds."""

from random import Random
from typing import ClassVar, Literal, get_args

from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import show, tasks_of
from selfplay.errors import check_choice
from selfplay.rng import derive
from selfplay.rollout.rollout import RolloutFn
from selfplay.sampler.base import GroupSampler
from selfplay.sampler.independent import group_id, require_tasks, sibling_spec
from selfplay.sampler.success import by_success, success_fractions
from selfplay.types import Episode, Group

Until = Literal["balanced", "success"]


class Adaptive(GroupSampler):
    """Plays each task in rounds until its episodes have enough signal (Reinforce-Ada, 2510.04996).

    An episode succeeds if the mean return of its agents is above `threshold`. A task gets no more
    rounds once it has half a group of successes and half a group of failures (`balanced`), or a
    whole group with one success (`success`). Of each task, G episodes are kept, drawn uniformly:
    half successes and half failures, or as near to this as their numbers allow. With `keep_all`
    nothing is dropped. The baseline of credit is then the mean of all episodes, as with the paper's
    global statistics, and groups differ in size.

    Failure mode: the kept episodes of a balanced group are not a fair sample. Their baseline is
    near one half at any success rate, so that a task with a low rate has more weight than in the
    expected return. Episodes with the status failed count as neither kind, and are kept only if
    there are fewer than G others.
    """

    judges_success: ClassVar[bool] = True

    def __init__(
        self,
        *,
        group_size: int = 8,
        round_size: int = 8,
        rounds: int = 4,
        until: Until = "balanced",
        threshold: float = 0.0,
        keep_all: bool = False,
    ) -> None:
        """Args:
        group_size: G, episodes kept per task.
        round_size: Episodes of a task in a round.
        rounds: Largest number of rounds.
        until: Condition for the end of a task's rounds: balanced or success.
        threshold: Mean return of the agents above which an episode succeeds.
        keep_all: True to learn from all episodes of each task.
        """
        if min(group_size, round_size, rounds) < 1:
            raise ValueError("group_size, round_size and rounds must be at least 1")
        if round_size * rounds < group_size:
            raise ValueError(
                f"{rounds} rounds of {round_size} episodes are fewer than the "
                f"{group_size} of a group; raise round_size or rounds"
            )
        check_choice("until", until, get_args(Until))
        if until == "balanced" and group_size < 2:
            raise ValueError(
                "group_size: 1 does not fit: a balanced group has a success and a failure; choose "
                "at least 2, or until=success"
            )
        self.group_size, self.round_size, self.rounds = group_size, round_size, rounds
        self.until, self.threshold, self.keep_all = until, threshold, keep_all
        self._kept: list[Group] = []
        self._unfinished = 0

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """Return the step's tasks with their kept episodes."""
        tasks = tasks_of(curriculum, step)
        require_tasks(tasks, step=step)
        episodes: list[list[Episode]] = [[] for _ in tasks]
        active = list(range(len(tasks)))
        for _ in range(self.rounds):
            specs = [
                sibling_spec(
                    tasks[number], len(episodes[number]) + place, number, seed=seed, step=step
                )
                for number in active
                for place in range(self.round_size)
            ]
            results = iter(rollout_fn(specs))
            for number in active:
                episodes[number] += [next(results) for _ in range(self.round_size)]
            active = [number for number in active if not self._finished(episodes[number])]
            if not active:
                break
        self._unfinished = len(active)
        played = [
            Group(id=group_id(number, step=step), episodes=tuple(found))
            for number, found in enumerate(episodes)
        ]
        show(curriculum, played, step)
        self._played = self._kept = played
        if not self.keep_all:
            self._kept = [
                self._balanced(group, Random(derive(seed, "adaptive", step, group.id)))
                for group in played
            ]
        return self._kept

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last call.

        They are: the episodes per task, the fraction of tasks without enough signal after all
        rounds, and the fractions of successes among the played and among the kept episodes.
        """
        tasks = max(len(self._played), 1)
        return {
            "episodes_per_task": sum(len(group.episodes) for group in self._played) / tasks,
            "unfinished": self._unfinished / tasks,
            **success_fractions(self._played, self._kept, self.threshold),
        }

    def _finished(self, episodes: list[Episode]) -> bool:
        """Return True if a task needs no further round."""
        _, failures, successes = by_success(Group(id="", episodes=tuple(episodes)), self.threshold)
        if self.until == "success":
            return len(failures) + len(successes) >= self.group_size and bool(successes)
        half = self.group_size // 2
        return len(successes) >= half and len(failures) >= self.group_size - half

    def _balanced(self, group: Group, rng: Random) -> Group:
        """Return a group of G episodes, half of them successes if there are enough of each kind."""
        failed, failures, successes = by_success(group, self.threshold)
        half = self.group_size // 2
        wins = min(len(successes), max(half, self.group_size - len(failures)))
        losses = min(len(failures), self.group_size - wins)
        kept = [*rng.sample(successes, wins), *rng.sample(failures, losses)]
        kept += failed[: self.group_size - len(kept)]
        return Group(id=group.id, episodes=tuple(group.episodes[i] for i in sorted(kept)))
