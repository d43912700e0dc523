"""Evaluation: fixed tasks, fixed seeds, played by policies as they are."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from selfplay.arena import Arena
from selfplay.errors import nearest
from selfplay.rng import derive
from selfplay.rollout import matches as versus
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn, check_sampling_limits
from selfplay.types import Episode, Status, Task


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is played, how often and how it is sampled.

    The seeds depend on the run's seed and the evaluation's name alone, so that before, during and
    after training the same tasks meet the same random numbers.
    """

    arena: Callable[[], Arena]
    """Makes the arena."""
    tasks: Sequence[Task]
    """What is played."""
    metrics: Mapping[str, str]
    """Reported name to the arena's metric, e.g. accuracy: solve_rate."""
    samples: int = 1
    """Episodes per task."""
    temperature: float = 1.0
    """0 is greedy."""
    every: int = 0
    """Also during training, every so many steps; 0 is before and after only."""
    opponents: Sequence[str] = ()
    """Opponents by name. The roles' own policies then do not meet each other, but each of these:
    from every seat in turn, with the opponent in all the others, and with the same seeds."""
    seats: Sequence[str] = ()
    """The agents that change places, where the arena has others too (a judge); all where empty."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.temperature < 0 or self.every < 0:
            raise ValueError("samples is at least 1, temperature and every are not negative")
        check_sampling_limits(temperature=self.temperature)
        if not (self.seats or self.opponents):
            return
        known = self.arena().possible_agents
        for seat in self.seats:
            if seat not in known:
                raise ValueError(f"seats: no agent {seat!r}; {nearest(seat, known)}")
        seats = list(self.seats or known)
        if self.opponents and len(set(seats)) < 2:
            raise ValueError(f"opponents: a match needs two seats, and there is {seats}")

    def run(
        self, name: str, rollout_fn: RolloutFn, *, seed: int
    ) -> tuple[dict[str, float], list[Episode]]:
        """Means over all episodes, and by task type; with the episodes."""
        members: Counter[str] = Counter()  # a task that is listed twice is sampled afresh
        jobs = []
        for task in self.tasks:
            for _ in range(self.samples):
                at = derive(seed, "evaluation", name, task.id)
                jobs.append(EpisodeSpec(task=task, seed=at, member=members[task.id]))
                members[task.id] += 1
        if not self.opponents:
            episodes = rollout_fn(jobs)
            return self.summarize(episodes), episodes
        seats = self.seats or self.arena().possible_agents
        matches = [
            versus.Match(seat=seat, opponent=opponent, seats=seats)
            for opponent in self.opponents
            for seat in seats
        ]
        episodes = rollout_fn(
            [replace(job, policy_map=m.policy_map, seats=seats) for m in matches for job in jobs]
        )
        played = [match for match in matches for _ in jobs]
        found = self.summarize(episodes)
        return found | versus.figures(played, episodes), episodes

    def unmeasured(self, name: str, episodes: Sequence[Episode]) -> list[str]:
        """A line for every metric that no episode that was played to its end has.

        No error: all of them may be without it, as refused proposals are without a solve rate.
        """
        finished = [episode for episode in episodes if episode.status is Status.FINISHED]
        known = {metric for episode in finished for metric in episode.metrics}
        return [
            f"evaluations.{name}.metrics.{shown}: none of {len(finished)} finished episodes has a "
            f"{measured!r}, so there is no such figure; {nearest(measured, known)}"
            for shown, measured in self.metrics.items()
            if finished and measured not in known
        ]

    def summarize(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """The reported means, and `distinct_created`: distinct tasks among those created, if any.

        A failed episode counts as 0, and so does one that was cut off before it was measured: no
        share or score gets better by failing.
        """
        values: dict[str, list[float]] = defaultdict(list)
        for episode in episodes:
            for shown, measured in self.metrics.items():
                value = episode.metrics.get(measured)
                if value is None and episode.status is Status.FINISHED:
                    continue  # it has no such metric, as a refused proposal has no solve rate
                if value is None or episode.status is Status.FAILED:
                    value = 0.0
                values[shown].append(value)
                values[f"{episode.task.type}/{shown}"].append(value)
        found = {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
        created = [task.id for episode in episodes for task in episode.created]
        if created:
            found["distinct_created"] = len(set(created)) / len(created)
        found["failed_episodes"] = float(sum(e.status is Status.FAILED for e in episodes))
        return found
