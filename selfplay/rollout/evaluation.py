"""Evaluation: fixed tasks and seeds, played by the current policies."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from selfplay.arena import Arena
from selfplay.errors import nearest
from selfplay.rng import derive
from selfplay.rollout.draws import draws_matter
from selfplay.rollout.matches import Match, match_metrics
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.run.declarations import ArenaMetrics, measured_by
from selfplay.types import Episode, Status, Task


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Tasks to play, with the number of samples and the sampling settings.

    The seeds depend only on the run's seed, the evaluation's name and the task (and, without
    `same_draws`, on the number of the sample), so that the same tasks use the same random numbers
    before, during and after training.
    """

    arena: Callable[[], Arena]
    """Function that makes a new arena; in a config, the config of an arena, such as ${arena}."""
    tasks: Sequence[Task]
    """Tasks to play."""
    metrics: Mapping[str, str]
    """Reported name to the name of the arena's metric, such as accuracy: solve_rate."""
    samples: int = 1
    """Number of episodes per task. The policies sample anew in each of them; the arena's random
    draws differ too if `same_draws` is false."""
    same_draws: bool = True
    """True: the arena makes the same random draws, such as one deal, in all samples of a task.
    False: each sample has draws of its own, the same before and after training."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    every: int = 0
    """Interval of evaluations during training, in steps; 0: only before and after training."""
    opponents: Sequence[str] = ()
    """Names of opponents. If there are any, the roles' own policies play each opponent instead of
    each other: from every seat in turn, with the opponent in all other seats and the same seeds.
    A task is played from those of the seats that take part in it (`Arena.agents_of`); a task with
    fewer than two of them is not played."""
    seats: Sequence[str] = ()
    """Agents that an opponent may play; empty: all agents or, in a config, all agents whose role is
    played by a policy of the run. Name them if the arena has other agents too, such as a judge that
    learns. An agent whose role `population.roles` gives to an opponent is always played by that
    opponent."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("tasks: there is none, so nothing would be measured; add one")
        if self.samples < 1 or self.every < 0:
            raise ValueError("samples must be at least 1, and every must not be negative")
        SamplingSettings(temperature=self.temperature)  # checks it
        if not (self.seats or self.opponents):
            return
        known = self.arena().possible_agents
        for seat in self.seats:
            if seat not in known:
                raise ValueError(f"seats: no agent {seat!r}; {nearest(seat, known)}")
        seats = list(self.seats or known)
        if self.opponents and len(set(seats)) < 2:
            raise ValueError(f"opponents: a match needs two seats, and there is {seats}")
        if self.opponents and not any(self._seats_by_task):
            raise ValueError(
                f"opponents: a match needs two seats, and in no task two of {seats} take part; "
                "name other tasks, or other seats"
            )

    def run(
        self, name: str, rollout_fn: RolloutFn, *, seed: int
    ) -> tuple[dict[str, float], list[Episode]]:
        """Play the evaluation; return its metrics (means, also by task type) and its episodes.

        Args:
            name: Name of the evaluation, on which the seeds depend.
            rollout_fn: Plays the episodes.
            seed: The run's seed.
        """
        members: Counter[str] = Counter()  # a task that is listed twice gets new samples
        specs = []
        for task in self.tasks:
            for _ in range(self.samples):
                own = () if self.same_draws else (members[task.id],)
                at = derive(seed, "evaluation", name, task.id, *own)
                specs.append(EpisodeSpec(task=task, seed=at, member=members[task.id]))
                members[task.id] += 1
        if not self.opponents:
            episodes = rollout_fn(specs)
            return self.summarize(episodes), episodes
        seats_by_spec = [seats for seats in self._seats_by_task for _ in range(self.samples)]
        matches = [
            (spec, Match(seat=seat, opponent=opponent, seats=seats))
            for opponent in self.opponents
            for seat in self._all_seats
            for spec, seats in zip(specs, seats_by_spec, strict=True)
            if seat in seats
        ]
        episodes = rollout_fn(
            [replace(spec, policy_map=m.policy_map, seats=m.seats) for spec, m in matches]
        )
        played = [match for _, match in matches]
        return self.summarize(episodes) | match_metrics(played, episodes), episodes

    def notes(self, name: str, episodes: Sequence[Episode]) -> list[str]:
        """Return the lines for the user about what the evaluation could not measure."""
        return [
            *self.without_match(name),
            *self.unmeasured(name, episodes),
            *self.repeated_draws(name, episodes),
        ]

    def without_match(self, name: str) -> list[str]:
        """Return a line if tasks are not played because they have fewer than two of the seats."""
        if not self.opponents:
            return []
        pairs = zip(self.tasks, self._seats_by_task, strict=True)
        alone = [task.id for task, seats in pairs if not seats]
        if not alone:
            return []
        return [
            f"evaluations.{name}.opponents: in {len(alone)} of {len(self.tasks)} tasks, such as "
            f"{alone[0]!r}, fewer than two of the seats take part, so they are not played"
        ]

    def unmeasured(self, name: str, episodes: Sequence[Episode]) -> list[str]:
        """Return a line for every configured metric that no finished episode has.

        This is not an error: for example, refused proposals have no solve rate, and all proposals
        may have been refused.
        """
        finished = [episode for episode in episodes if episode.status is Status.FINISHED]
        known = {metric for episode in finished for metric in episode.metrics}
        return [
            f"evaluations.{name}.metrics.{shown}: none of {len(finished)} finished episodes has a "
            f"{measured!r}, so it is not reported; {nearest(measured, known)}"
            for shown, measured in self.metrics.items()
            if finished and measured not in known
        ]

    def repeated_draws(self, name: str, episodes: Sequence[Episode]) -> list[str]:
        """Return a line if all episodes have the same draws of an arena, and these matter."""
        played = len(self.tasks) * self.samples
        first = next((each for each in episodes if each.status is Status.FINISHED), None)
        alone = len({task.id for task in self.tasks}) == 1 and played > 1
        if first is None or not (self.same_draws and alone and draws_matter(self.arena, first)):
            return []
        return [
            f"evaluations.{name}: all {played} samples of its only task {first.task.id!r} have the "
            f"same random draws, so they measure one deal; evaluations.{name}."
            "same_draws=false gives each sample its own"
        ]

    def summarize(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the reported means.

        `distinct_created` is the fraction of distinct tasks among the created tasks, if there are
        any. A failed episode, and one that was cut off before it was measured, counts as 0 if the
        arena declares that more of the metric is better, so that a failure cannot raise the mean
        of a metric that is never negative. These episodes are left out of the mean of any other
        metric. A metric is not reported if there are finished episodes and none of them has it, or
        if all its episodes failed.
        `tool_calls` is the number of tool calls per move, if any agent called a tool;
        `failed_episodes` and `truncated_episodes` are the numbers of failed and of cut-off
        episodes.
        """
        values: dict[str, list[float]] = defaultdict(list)
        measurable: dict[str, bool] = {}  # True if one of the finished episodes has the metric
        played: set[str] = set()  # metrics with an episode that did not fail
        for episode in episodes:
            for shown, measured in self.metrics.items():
                value = episode.metrics.get(measured)
                names = (shown, f"{episode.task.type}/{shown}")
                if episode.status is not Status.FAILED:
                    played.update(names)
                if episode.status is Status.FINISHED:
                    for name in names:
                        measurable[name] = measurable.get(name, False) or value is not None
                    if value is None:
                        continue  # e.g. a refused proposal has no solve rate
                elif value is None or episode.status is Status.FAILED:
                    if not self._declared.more_is_better(f"{episode.task.type}/{measured}"):
                        continue
                    value = 0.0
                for name in names:
                    values[name].append(value)
        means = {
            name: sum(numbers) / len(numbers)
            for name, numbers in values.items()
            if name in played and measurable.get(name, True)
        }
        created = [task.id for episode in episodes for task in episode.created]
        if created:
            means["distinct_created"] = len(set(created)) / len(created)
        means |= _tool_calls(episodes)
        for status in (Status.FAILED, Status.TRUNCATED):
            means[f"{status}_episodes"] = float(sum(e.status is status for e in episodes))
        return means

    @cached_property
    def _all_seats(self) -> list[str]:
        return list(dict.fromkeys(self.seats or self.arena().possible_agents))

    @cached_property
    def _seats_by_task(self) -> list[list[str]]:
        """[tasks] seats that take part in each task; [] for a task with fewer than two of them."""
        arena, found = self.arena(), []
        for task in self.tasks:
            there = set(arena.agents_of(task))
            seats = [seat for seat in self._all_seats if seat in there]
            found.append(seats if len(seats) > 1 else [])
        return found

    @cached_property
    def _declared(self) -> ArenaMetrics:
        return measured_by(self.arena())


def _tool_calls(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the tool calls per move, also by task type; nothing if no agent called a tool."""
    calls: Counter[str] = Counter()
    moves: Counter[str] = Counter()
    for episode in episodes:
        for name in ("tool_calls", f"{episode.task.type}/tool_calls"):
            calls[name] += sum(len(turn.tool_calls) for turn in episode.turns)
            moves[name] += len(episode.moves())
    if not calls.total():
        return {}
    return {name: count / max(moves[name], 1) for name, count in calls.items()}
