"""Dynamic sampling: groups without signal are dropped and replaced, within bounds."""

from typing import ClassVar

from selfplay.credit import Credit
from selfplay.credit.base import GroupBy
from selfplay.credit.signal import has_signal, returns_differ
from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import is_ready, show, tasks_of
from selfplay.errors import NothingToLearn
from selfplay.rollout.rollout import RolloutFn
from selfplay.sampler.base import GroupSampler
from selfplay.sampler.independent import play_groups
from selfplay.types import Group


class Dynamic(GroupSampler):
    """Independent sampling until the step has as many groups with signal as it has tasks (DAPO,
    2503.14476).

    A group has signal if two of its returns that the credit method compares are different (see
    `credit.signal.has_signal`): those of agents with the same `group_by`, or the team's returns of
    episodes. Otherwise every group-relative advantage of an episode's return is zero. A credit
    method that judges turns by their return to go may find more signal in a group. After
    `rounds` rounds the step continues with the groups that it has, or stops the run if it has none
    (the paper stops after 10). While a curriculum still gathers tasks nothing is learned, so one
    round is played and nothing is dropped.
    """

    drops_groups: ClassVar[bool] = True
    refills: ClassVar[bool] = True

    def __init__(
        self,
        *,
        group_size: int = 8,
        rounds: int = 10,
        group_by: GroupBy | None = None,
        credit: Credit | None = None,
    ) -> None:
        """Args:
        group_size: G, episodes per task.
        rounds: Largest number of rounds of a step; each asks the curriculum for more tasks.
        group_by: Key of the comparison of own returns, see `credit.base.group_key`. None: as
            `credit` compares, or within a role without `credit`.
        credit: The run's credit method.
        """
        if group_size < 1 or rounds < 1:
            raise ValueError("group_size and rounds must be at least 1")
        self.group_size, self.rounds = group_size, rounds
        self.group_by, self.credit = group_by, credit
        self._kept = self._rounds = 0

    def sample(
        self, curriculum: Curriculum, rollout_fn: RolloutFn, *, step: int, seed: int
    ) -> list[Group]:
        """Return groups with signal, at most as many as the step has tasks."""
        kept: list[Group] = []
        wanted, self._played, self._kept = 0, [], 0
        gathering = False
        for attempt in range(self.rounds):
            tasks = tasks_of(curriculum, step, attempt)
            if not attempt:
                # The tasks of a step may begin another phase, whose parts are not ready yet.
                gathering, wanted = not is_ready(curriculum), len(tasks)
            groups = play_groups(
                tasks, rollout_fn, size=self.group_size, seed=seed, step=step, attempt=attempt
            )
            show(curriculum, groups, step)
            self._played = [*self._played, *groups]
            self._rounds = attempt + 1
            if gathering:
                self._kept = len(groups)
                return groups
            kept += [group for group in groups if self.has_signal(group)]
            if len(kept) >= wanted:
                break
        self._kept = min(len(kept), wanted)
        if not kept:
            raise NothingToLearn(
                f"step {step}: none of {len(self._played)} groups in {self._rounds} rounds has two "
                f"different returns {self._compared()}, so there is nothing to learn; make the "
                "tasks easier or harder"
            )
        return kept[:wanted]

    def has_signal(self, group: Group) -> bool:
        """Return True if two returns that are compared with each other are different."""
        if self.group_by is None and self.credit is not None:
            return has_signal(self.credit, group)
        return returns_differ(group, self.group_by or "role")

    def _compared(self) -> str:
        """Return the words for the returns that `has_signal` compares."""
        if self.group_by is None and self.credit is not None:
            return f"that {type(self.credit).__name__} compares"
        return f"within one {self.group_by or 'role'}"

    def metrics(self) -> dict[str, float]:
        """Return the numbers of groups played and kept, and of rounds."""
        return {
            "groups_played": float(len(self._played)),
            "groups_kept": float(self._kept),
            "rounds": float(self._rounds),
        }
