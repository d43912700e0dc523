"""Resampling: more episodes than are learned from, and the clean ones of those that succeeded."""

from random import Random
from typing import ClassVar

from selfplay.credit.team_return import team_return
from selfplay.curriculum import Curriculum
from selfplay.rng import derive
from selfplay.rollout.rollout import RolloutFn
from selfplay.sampler.independent import play_groups
from selfplay.types import Episode, Group, Status


class Resample:
    """Plays `oversample` times G episodes per task and keeps G (GRPO-RoC, 2508.20722).

    An episode succeeds if what it paid its agents is above `threshold` in the mean. Failures and
    successes are kept in the proportion in which they came: failures drawn uniformly, so that all
    ways to fail stay in, successes by quality, the lowest penalty first. An episode's penalty is
    the share of its turns that were no action, plus the arena's metric `penalty` if one is named
    (such as the share of tool calls that failed).

    Failure mode: the kept successes are no sample of the policy, so the gradient is biased towards
    what the penalty likes, and the arena's own reward never asked for it. Episodes in which the
    arena broke are kept only where G others are lacking.
    """

    tree: ClassVar[bool] = False

    def __init__(
        self,
        *,
        group_size: int = 8,
        oversample: int = 2,
        threshold: float = 0.0,
        penalty: str | None = None,
    ) -> None:
        """`group_size` is G."""
        if group_size < 1 or oversample < 1:
            raise ValueError("sampler: group_size and oversample are at least 1")
        self.group_size, self.oversample = group_size, oversample
        self.threshold, self.penalty = threshold, penalty
        self.metrics_read = {"penalty": penalty} if penalty else {}
        self._played: list[Group] = []
        self._kept: list[Group] = []

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """The step's tasks with the G episodes that each keeps."""
        tasks = curriculum.tasks(step)
        size = self.group_size * self.oversample
        self._played = play_groups(tasks, rollout_fn, size=size, seed=seed, step=step)
        curriculum.observe(self._played, step)
        self._kept = [
            self._resampled(group, Random(derive(seed, "resample", step, group.id)))
            for group in self._played
        ]
        return self._kept

    def played(self) -> list[Group]:
        """All that were played in the last call."""
        return self._played

    def metrics(self) -> dict[str, float]:
        """Successes among the played and among the kept, and the mean penalty of both."""
        figures: dict[str, float] = {}
        for name, groups in (("played", self._played), ("kept", self._kept)):
            whole = [e for g in groups for e in g.episodes if e.status is not Status.FAILED]
            wins = [episode for episode in whole if self._succeeded(episode)]
            figures[f"success_{name}"] = len(wins) / max(len(whole), 1)
            figures[f"penalty_{name}"] = sum(map(self._penalty, wins)) / max(len(wins), 1)
        return figures

    def _resampled(self, group: Group, rng: Random) -> Group:
        broken, failures, successes = [], [], []
        for index, episode in enumerate(group.episodes):
            if episode.status is Status.FAILED:
                broken.append(index)
            elif self._succeeded(episode):
                successes.append(index)
            else:
                failures.append(index)
        whole = len(failures) + len(successes)
        wanted = min(self.group_size, whole)
        losses = round(wanted * len(failures) / max(whole, 1))
        best = sorted(successes, key=lambda index: self._penalty(group.episodes[index]))
        kept = [*rng.sample(failures, losses), *best[: wanted - losses]]
        kept += broken[: self.group_size - wanted]
        return Group(id=group.id, episodes=tuple(group.episodes[i] for i in sorted(kept)))

    def _succeeded(self, episode: Episode) -> bool:
        return team_return(episode) > self.threshold

    def _penalty(self, episode: Episode) -> float:
        invalid = sum(turn.action is None for turn in episode.turns) / max(len(episode.turns), 1)
        return invalid + (episode.metrics.get(self.penalty, 0.0) if self.penalty else 0.0)
