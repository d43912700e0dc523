"""Resampling: plays more episodes than are learned from, and prefers clean successes."""

from collections.abc import Collection
from random import Random
from typing import ClassVar

from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import show, tasks_of
from selfplay.rng import derive
from selfplay.rollout.rollout import RolloutFn
from selfplay.sampler.base import GroupSampler
from selfplay.sampler.independent import play_groups
from selfplay.sampler.success import by_success, not_failed, succeeded, success_fractions
from selfplay.types import Episode, Group

WITHOUT_CALL = 0.5
"""Penalty of an episode whose agents have tools and called none (as in the paper's code)."""


class Resample(GroupSampler):
    """Plays `oversample` times G episodes per task and keeps G (GRPO-RoC, 2508.20722).

    An episode succeeds if the mean return of its agents is above `threshold`. The kept failures and
    successes have the proportion in which they occurred: failures are drawn uniformly, so that all
    kinds of failure remain, and successes are kept in ascending order of their penalty. The penalty
    is the fraction of moves without a valid action, plus the fraction of tool calls that failed,
    plus the arena metric that the setting `penalty` names, if it is set. An episode in which a role
    with tools acts and no tool is called counts as one in which half of the calls failed, so a
    success without calls is kept after a success whose calls all worked.

    Failure mode: the kept successes are not a fair sample of the policy, so the gradient is biased
    towards a low penalty, which the arena's own reward does not ask for. Episodes with the status
    failed are kept only if there are fewer than G others.
    """

    judges_success: ClassVar[bool] = True

    def __init__(
        self,
        *,
        group_size: int = 8,
        oversample: int = 2,
        threshold: float = 0.0,
        penalty: str | None = None,
        tool_roles: Collection[str] = (),
    ) -> None:
        """Args:
        group_size: G, episodes kept per task.
        oversample: Episodes played for each one kept.
        threshold: Mean return of the agents above which an episode succeeds.
        penalty: Arena metric that is added to the penalty.
        tool_roles: Roles with tools. A config without it gets them from its roles.
        """
        if group_size < 1 or oversample < 1:
            raise ValueError("group_size and oversample must be at least 1")
        self.group_size, self.oversample = group_size, oversample
        self.threshold, self.penalty = threshold, penalty
        self.tool_roles = frozenset(tool_roles)
        self.metrics_read = {"penalty": penalty} if penalty else {}
        self._kept: list[Group] = []

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """Return the step's tasks with G kept episodes each."""
        tasks = tasks_of(curriculum, step)
        size = self.group_size * self.oversample
        played = play_groups(tasks, rollout_fn, size=size, seed=seed, step=step)
        show(curriculum, played, step)
        self._played = played
        self._kept = [
            self._resampled(group, Random(derive(seed, "resample", step, group.id)))
            for group in played
        ]
        return self._kept

    def metrics(self) -> dict[str, float]:
        """Return the fraction of successes and the mean penalty of the successes, among the played
        and among the kept episodes."""
        metrics = success_fractions(self._played, self._kept, self.threshold)
        for name, groups in (("played", self._played), ("kept", self._kept)):
            wins = [each for each in not_failed(groups) if succeeded(each, self.threshold)]
            metrics[f"penalty_{name}"] = sum(map(self._penalty, wins)) / max(len(wins), 1)
        return metrics

    def _resampled(self, group: Group, rng: Random) -> Group:
        failed, failures, successes = by_success(group, self.threshold)
        played = len(failures) + len(successes)
        wanted = min(self.group_size, played)
        losses = round(wanted * len(failures) / max(played, 1))
        if failures and successes and wanted > 1:  # one of each, so that the group has a signal
            losses = min(max(losses, 1), wanted - 1)
        best = sorted(successes, key=lambda index: self._penalty(group.episodes[index]))
        kept = [*rng.sample(failures, losses), *best[: wanted - losses]]
        kept += failed[: self.group_size - wanted]
        return Group(id=group.id, episodes=tuple(group.episodes[i] for i in sorted(kept)))

    def _penalty(self, episode: Episode) -> float:
        moves, calls = episode.moves(), [c for turn in episode.turns for c in turn.tool_calls]
        invalid = sum(turn.invalid for turn in moves) / max(len(moves), 1)
        failed = sum(bool(call.error) for call in calls) / max(len(calls), 1)
        if not calls and any(turn.role in self.tool_roles for turn in episode.turns):
            failed = WITHOUT_CALL
        return invalid + failed + (episode.metrics.get(self.penalty, 0.0) if self.penalty else 0.0)
