"""Dynamic sampling: groups without signal are dropped and replaced, within bounds."""

from selfplay.curriculum import Curriculum
from selfplay.errors import CollapsedError
from selfplay.sampler import Play
from selfplay.sampler.independent import play_groups
from selfplay.types import Group, Status


class Dynamic:
    """Independent sampling until the step has as many groups with signal as it has tasks (DAPO).

    A group has signal if two turns of one role were paid differently: otherwise every
    group-relative advantage of an episode's return is zero. After `rounds` rounds the step goes
    on with what there is, or stops the run where there is nothing (2503.14476, which stops after
    10). While a curriculum still gathers tasks nothing is learned, so one round is played and
    nothing dropped.
    """

    def __init__(self, *, group_size: int = 8, rounds: int = 10) -> None:
        """`group_size` is G; `rounds` bounds how often a step may ask for more tasks."""
        if group_size < 1 or rounds < 1:
            raise ValueError("sampler: group_size and rounds are at least 1")
        self.group_size, self.rounds = group_size, rounds
        self._played: list[Group] = []
        self._kept = self._rounds = 0

    def sample(self, curriculum: Curriculum, play: Play, *, step: int, seed: int) -> list[Group]:
        """Groups with signal, at most as many as the step has tasks."""
        kept: list[Group] = []
        wanted, self._played, self._kept = 0, [], 0
        gathering = not curriculum.ready()
        for attempt in range(self.rounds):
            tasks = curriculum.tasks(step, attempt)
            wanted = wanted or len(tasks)
            groups = play_groups(
                tasks, play, size=self.group_size, seed=seed, step=step, attempt=attempt
            )
            curriculum.observe(groups, step)
            self._played += groups
            self._rounds = attempt + 1
            if gathering:
                self._kept = len(groups)
                return groups
            kept += [group for group in groups if has_signal(group)]
            if len(kept) >= wanted:
                break
        self._kept = min(len(kept), wanted)
        if not kept:
            raise CollapsedError(
                f"step {step}: none of {len(self._played)} groups in {self._rounds} rounds has two "
                "different rewards for one role, so there is nothing to learn; make the tasks "
                "easier or harder"
            )
        return kept[:wanted]

    def played(self) -> list[Group]:
        """The groups of the last call's rounds, dropped ones too."""
        return self._played

    def metrics(self) -> dict[str, float]:
        """Groups played and kept, and rounds it took."""
        return {
            "groups_played": float(len(self._played)),
            "groups_kept": float(self._kept),
            "rounds": float(self._rounds),
        }


def has_signal(group: Group) -> bool:
    """Whether two agents of a role, in this episode or a sibling, got different returns."""
    returns: dict[str, set[float]] = {}
    for episode in group.episodes:
        if episode.status is Status.FAILED:
            continue
        paid: dict[str, float] = {}
        roles = {turn.agent: turn.role for turn in episode.turns}
        for turn in episode.turns:
            paid[turn.agent] = paid.get(turn.agent, 0.0) + turn.reward
        for agent, value in paid.items():
            returns.setdefault(roles[agent], set()).add(round(value, 9))
    return any(len(values) > 1 for values in returns.values())
