"""The games of a study: one arena, its tasks and seeds, played by whoever is to be compared.

All comparisons play the same tasks with the same seeds, so that differences are of who plays alone.

What a study has played: how it ended, who moved, and which metrics it had.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from selfplay.arena import Arena
from selfplay.config.compose import load_changed, with_local_runtime
from selfplay.config.instantiate import build
from selfplay.engines import Engine, ServingEngine
from selfplay.errors import ConfigError, nearest
from selfplay.experiment.experiment import Experiment
from selfplay.models.renderer import ByteRenderer, Renderer
from selfplay.rng import derive
from selfplay.rollout.policy_pool import check_known
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.run.directory import Run
from selfplay.study.players import Reference, StudyPlayer, places, settings_that_differ
from selfplay.study.stats.bootstrap import Draws
from selfplay.types import Episode, Status, Task

RETURN = "return"
"""The metric that every arena has: the mean over its agents of all that they were paid."""


@dataclass(kw_only=True)
class MatchCounts:
    """Counts over all episodes of a study."""

    episodes: int = 0
    """How many."""
    failed: int = 0
    """How many of them failed."""
    truncated: int = 0
    """How many were cut off."""
    turns: int = 0
    """Turns of all."""
    unparsed: int = 0
    """Turns that held no action."""
    movers: set[str] = field(default_factory=set)
    """Agents that have moved."""
    metrics: set[str] = field(default_factory=set)
    """Metrics that an episode had."""
    lacking: set[str] = field(default_factory=set)
    """Metrics that were asked for and that episodes which were played to their end lacked."""

    def count(self, episodes: Sequence[Episode]) -> None:
        """Add episodes."""
        turns = [turn for episode in episodes for turn in episode.turns]
        self.episodes += len(episodes)
        self.failed += sum(episode.status is Status.FAILED for episode in episodes)
        self.truncated += sum(episode.status is Status.TRUNCATED for episode in episodes)
        self.turns += len(turns)
        self.unparsed += sum(turn.action is None for turn in turns)
        self.movers |= {turn.agent for turn in turns}

    def ask(self, metric: str, episodes: Sequence[Episode]) -> None:
        """Note that a metric is asked for, and what there is: a cell may lack it."""
        self.metrics |= {name for episode in episodes for name in episode.metrics}
        finished = [episode for episode in episodes if episode.status is Status.FINISHED]
        if any(metric not in episode.metrics for episode in finished):
            self.lacking.add(metric)

    def check_measured(self, metric: str) -> None:
        """Raise ConfigError for a metric that was asked for and that no episode had."""
        if metric in self.lacking - self.metrics:
            raise ConfigError(
                f"--metric {metric}: no episode has it; {nearest(metric, [*self.metrics, RETURN])}"
            )

    def shares(self) -> dict[str, float]:
        """The shares of episodes and turns that went wrong."""
        return {
            "failed_episodes": self.failed / max(self.episodes, 1),
            "truncated_episodes": self.truncated / max(self.episodes, 1),
            "turns_without_action": self.unparsed / max(self.turns, 1),
        }


DEFAULT_EPISODES = 200
"""Where neither an evaluation nor the user says how many."""


@dataclass(kw_only=True)
class StudyMatches:
    """What is played, and the policies that can play it."""

    arena: Callable[[], Arena]
    """Makes the arena."""
    seats: Mapping[str, AgentSpec]
    """Role to seat: its prompts and its limits."""
    tasks: Sequence[Task] = ()
    """What is played; the arena's default task, drawn afresh for each episode, where empty."""
    engines: dict[str, Engine] = field(default_factory=dict)
    """Policy to the engine that serves it."""
    renderers: dict[str, Renderer] = field(default_factory=dict)
    """Policy, or opponent, to its token seam."""
    models: dict[str, PreTrainedModel] = field(default_factory=dict)
    """Policy to its model, where it has one."""
    metrics: Sequence[str] = (RETURN,)
    """What is reported, the chief one first: `return`, `return/<agent or role>`, or a metric."""
    episodes: int = DEFAULT_EPISODES
    """Per cell."""
    seed: int = 0
    """Of tasks, luck and samples."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the rollout."""
    params: dict[str, Any] = field(default_factory=dict)
    """What was chosen, for the record."""
    notes: list[str] = field(default_factory=list)
    """What must be known to read the figures."""
    _config: Mapping[str, Any] = field(default_factory=dict)
    _tally: MatchCounts = field(default_factory=MatchCounts)

    @property
    def agents(self) -> list[str]:
        """All agents of the arena."""
        return list(self.arena().possible_agents)

    def sides(self) -> dict[str, list[str]]:
        """The seats that are told apart: each role, or each agent where all have one role."""
        roles = self.arena().roles
        if len(roles) == 1:
            return {agent: [agent] for agent in self.agents}
        return {role: [a for a in self.agents if a.rpartition("_")[0] == role] for role in roles}

    def idle(self) -> list[str]:
        """The sides of which nobody has moved in anything that was played."""
        moved = self._tally.movers
        return [side for side, agents in self.sides().items() if not moved & set(agents)]

    def jobs(self, seating: Mapping[str, str], *, count: int | None = None) -> list[EpisodeSpec]:
        """`count` episodes; the same for every seating.

        Every task is played equally often; those of a count that this does not divide are drawn at
        random, because a list may be sorted.
        """
        arena, jobs = self.arena(), []
        count = self.episodes if count is None else count
        tasks: list[Task] = []
        if self.tasks:
            whole, rest = divmod(count, len(self.tasks))
            order = Random(derive(self.seed, "study", "order"))
            tasks = [*self.tasks] * whole + order.sample(self.tasks, rest)
        for number in range(count):
            at = derive(self.seed, "study", number)
            task = tasks[number] if tasks else arena.default_task(Random(derive(at, "task")))
            jobs.append(EpisodeSpec(task=task, seed=at, policy_map=seating))
        return jobs

    def rollout(self, arena: Callable[[], Arena] | None = None, **limits: Any) -> Rollout:
        """A rollout of these games, or of `arena` in their place."""
        return Rollout(
            arena=arena or self.arena,
            seats=self.seats,
            engines=self.engines,
            renderers=self.renderers,
            **{**self.limits, **limits},
        )

    def run(
        self, seating: Mapping[str, str], *, arena: Callable[[], Arena] | None = None
    ) -> list[Episode]:
        """All episodes with these policies (agent to policy) in the seats."""
        return self.count(self.rollout(arena).run(self.jobs(seating)))

    def count(self, episodes: list[Episode]) -> list[Episode]:
        """Note how the episodes ended and who moved, for the record; returns them."""
        self._tally.count(episodes)
        return episodes

    def seat(self, policy: str, agent: str) -> AgentSpec:
        """The seat of an agent that a policy takes."""
        seat = self.seats[agent.rpartition("_")[0]]
        if policy == seat.policy:
            return seat
        return replace(seat, policy=policy, renderer=self.renderers[policy])

    def scores(self, episodes: Sequence[Episode], metric: str | None = None) -> np.ndarray:
        """[N] a metric, the chief one where None; NaN where an episode failed or lacks it.

        One that was cut off before it was measured counts as 0, as in an evaluation.
        """
        name = metric or self.metrics[0]
        agents = self._paid(name)
        if agents:
            return np.array([_mean_return(episode, agents) for episode in episodes])
        self._tally.ask(name, episodes)
        return np.array([_measured(episode, name) for episode in episodes])

    def draws(self, episodes: Sequence[Episode], *, given: bool = False) -> Draws:
        """Return the resampling for intervals of statistics over these episodes, see `Draws`."""
        tasks = [episode.task.id for episode in episodes]
        return Draws(tasks=tasks, seed=self.seed, given=given)

    def record(self) -> dict[str, Any]:
        """How it was measured, with the shares of episodes and turns that went wrong.

        Raises ConfigError if the chief metric was asked for and no episode of the study had it.
        """
        self._tally.check_measured(self.metrics[0])
        told = {**self.params, "episodes_per_cell": self.episodes, "seed": self.seed}
        return {**told, **self._tally.shares()}

    def admit(self, references: Sequence[Reference], *, anyhow: bool = False) -> list[StudyPlayer]:
        """Load the policies that these name, so that they can be seated; `anyhow` in any role.

        Raises ConfigError for one that cannot play the arena's roles. One that was trained with
        another arena or with other prompts is noted.
        """
        players = [self._admit(reference, anyhow) for reference in references]
        labels = [player.label for player in players]
        return [
            replace(player, label=str(reference.run) + "@" + player.label.rpartition("@")[2])
            if labels.count(player.label) > 1
            else player
            for player, reference in zip(players, references, strict=True)
        ]

    def seated(self, names: Sequence[str], *, option: str) -> list[StudyPlayer]:
        """Those whom the run itself can seat: an opponent of its population, a league's snapshot.

        Raises ConfigError, with the option that named them, for a name of nobody.
        """
        check_known(names, self.renderers, where=option)
        roles = list(self.arena().roles)
        return [StudyPlayer(label=name, policies=dict.fromkeys(roles, name)) for name in names]

    def _admit(self, reference: Reference, anyhow: bool) -> StudyPlayer:
        player, policies, others = reference.load(list(self.arena().roles), anyhow=anyhow)
        differs = settings_that_differ(self._config, Run.open(reference.run).config())
        if differs:
            self.notes.append(
                f"{player.label} was trained with another {' and '.join(differs)} than this game's"
            )
        engine: ServingEngine = build(self._config["engine"], where="engine")
        for name, policy in policies.items():
            engine.serve(name, policy.model, policy.renderer.end_ids)
            self.engines[name], self.models[name] = engine, policy.model
            self.renderers[name] = policy.renderer
        for name, opponent in others.items():
            self.engines[name] = opponent
            self.renderers[name] = getattr(opponent, "renderer", None) or ByteRenderer()
        for role, name in player.policies.items():
            if not policies[name].learn if name in policies else name in others:
                who = name.rpartition(":")[2]
                self.notes.append(
                    f"{player.label}: {role} is played by {who}, which does not learn"
                )
        return player

    def _paid(self, metric: str) -> list[str]:
        """The agents whose mean return a metric is; none if it is one of the arena's."""
        first, _, who = metric.partition("/")
        if first != RETURN:
            return []
        if not who:
            return self.agents
        found = [agent for agent in self.agents if who in (agent, agent.rpartition("_")[0])]
        if not found:
            raise ConfigError(f"--metric {metric}: no such agent; {nearest(who, self.agents)}")
        return found


@contextmanager
def games_of(
    run: Path,
    *,
    evaluation: str | None = None,
    episodes: int | None = None,
    metric: str | None = None,
    seed: int = 0,
    changes: Sequence[str] = (),
) -> Iterator[StudyMatches]:
    """The games that an evaluation of a run plays; its services are released at the end.

    Args:
        run: The run folder.
        evaluation: Its first where None. A run without any plays its arena's default tasks.
        episodes: Per cell; as many as the evaluation plays where None.
        metric: The chief one; the evaluation's first where None.
        seed: Of luck and samples.
        changes: Overrides of the run's config, such as arena.rounds=4.
    """
    config = with_local_runtime(load_changed(run, changes) if changes else Run.open(run).config())
    experiment = Experiment.resume(config, places(run)[-1], learning=False)
    try:
        games = _games(experiment, evaluation, episodes, metric, seed)
        games.params |= {"changed": " ".join(changes)} if changes else {}
        yield games
    finally:
        experiment.close()


def _games(
    experiment: Experiment,
    evaluation: str | None,
    episodes: int | None,
    metric: str | None,
    seed: int,
) -> StudyMatches:
    known = experiment.evaluations
    if evaluation is not None and evaluation not in known:
        raise ConfigError(f"--evaluation {evaluation}: {nearest(evaluation, known)}")
    name = evaluation or next(iter(known), None)
    players = experiment.players
    rollout, metrics, count = players.rollout, [RETURN], DEFAULT_EPISODES
    tasks: Sequence[Task] = ()
    if name is not None:
        asked, rollout = players.evaluations[name], players.rollouts[name]
        tasks, metrics = asked.tasks, [*dict.fromkeys(asked.metrics.values()), RETURN]
        count = len(tasks) * asked.samples
    if metric is not None:
        metrics = [metric, *(each for each in metrics if each != metric)]
    return StudyMatches(
        arena=rollout.arena,
        seats=rollout.seats,
        tasks=tasks,
        engines=dict(rollout.engines),
        renderers=dict(rollout.renderers),
        models={n: policy.model for n, policy in experiment.policies.items()},
        metrics=metrics,
        episodes=episodes or count,
        seed=seed,
        limits={
            "max_turns": rollout.max_turns,
            "max_live": rollout.max_live,
            "threads": rollout.threads,
        },
        params={
            "arena": rollout.arena().name,
            "tasks": f"evaluation {name}" if name else "the arena's default tasks",
            "metric": metrics[0],
        },
        _config=experiment.config,
    )


def _measured(episode: Episode, metric: str) -> float:
    if episode.status is Status.FAILED:
        return math.nan
    return episode.metrics.get(metric, 0.0 if episode.status is Status.TRUNCATED else math.nan)


def _mean_return(episode: Episode, agents: Sequence[str]) -> float:
    if episode.status is Status.FAILED:
        return math.nan
    return sum(turn.reward for turn in episode.turns if turn.agent in agents) / len(agents)
