"""Games of a study: one arena, its tasks and its seeds, played by the players that are compared.

All players play the same tasks with the same seeds, so that only the players cause differences.
The games also count how the episodes ended, which agents moved and which metrics existed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from selfplay.arena import Arena
from selfplay.author_code import default_task_of
from selfplay.config.compose import load_changed, with_local_runtime
from selfplay.config.instantiate import build
from selfplay.config.plain_data import LOCAL_DEFAULTS
from selfplay.credit.base import own_pay
from selfplay.engines import Engine
from selfplay.errors import ConfigError, nearest
from selfplay.models.population import check_known
from selfplay.models.renderer import ByteRenderer, Renderer
from selfplay.rng import derive
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.run.activity import ACTIVITY
from selfplay.run.declarations import ArenaMetrics, measured_by
from selfplay.run.directory import Run
from selfplay.study.match_counts import MatchCounts
from selfplay.study.players import (
    Reference,
    StudyPlayer,
    places,
    roles_played_alike,
    settings_that_differ,
)
from selfplay.study.stats.bootstrap import Draws
from selfplay.types import Episode, Status, Task, role_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from selfplay.experiment.experiment import Experiment

RETURN = "return"
"""Name of the metric that every arena has: the mean return over the agents of the task."""
DEFAULT_EPISODES = 200
"""Number of episodes of a cell (one seating of the players) if neither an evaluation nor the user
sets it."""


@dataclass(kw_only=True)
class StudyMatches:
    """Games of a study, and the policies that can play them.

    `games_of` makes it from a run; every measure that plays games reads it.
    """

    arena: Callable[[], Arena]
    """Function that makes the arena."""
    agent_specs: Mapping[str, AgentSpec]
    """Role to the specification of its agents."""
    tasks: Sequence[Task] = ()
    """Tasks; if empty, every episode draws a default task of the arena."""
    engines: dict[str, Engine] = field(default_factory=dict)
    """Policy to the engine that serves it."""
    renderers: dict[str, Renderer] = field(default_factory=dict)
    """Policy or opponent to its renderer."""
    models: "dict[str, PreTrainedModel]" = field(default_factory=dict)
    """Policy to its model; policies without a model are missing."""
    metrics: Sequence[str] = (RETURN,)
    """Reported metrics, the main metric first: `return`, `return/<agent or role>`, or a metric of
    the arena."""
    episodes: int = DEFAULT_EPISODES
    """Number of episodes per cell. A cell is one seating of the players: agent to policy."""
    seed: int = 0
    """Seed of tasks, arenas and samples."""
    rollout_settings: RolloutSettings = field(default_factory=RolloutSettings)
    """Limits of the rollout."""
    params: dict[str, Any] = field(default_factory=dict)
    """Settings of the measurement, for the record."""
    notes: list[str] = field(default_factory=list)
    """Notes that readers of the results need."""
    cells: int = 0
    """Number of cells that `run` has begun so far."""
    _config: Mapping[str, Any] = field(default_factory=dict)
    _counts: MatchCounts = field(default_factory=MatchCounts)
    _opened: ExitStack = field(default_factory=ExitStack)

    @property
    def agents(self) -> list[str]:
        """Names of all agents of the arena."""
        return list(self.arena().possible_agents)

    def sides(self, players: Sequence[StudyPlayer] = ()) -> dict[str, list[str]]:
        """Return the agents of each side: a role, or a single agent if all agents have one role.

        Agents that take part in none of the tasks belong to no side. With `players`, agents that
        the same opponent plays for all of them belong to no side either.
        """
        same = roles_played_alike(players) if players else []
        arena = self.arena()
        here = {agent for task in self.tasks for agent in arena.agents_of(task)}
        agents = [
            agent
            for agent in arena.possible_agents
            if (agent in here or not here) and role_of(agent) not in same
        ]
        roles = dict.fromkeys(map(role_of, agents))
        if len(roles) == 1:
            return {agent: [agent] for agent in agents}
        return {role: [a for a in agents if role_of(a) == role] for role in roles}

    def idle(self, players: Sequence[StudyPlayer] = ()) -> list[str]:
        """Return the sides, see `sides`, without a single move in all games so far."""
        moved = self._counts.movers
        return [side for side, agents in self.sides(players).items() if not moved & set(agents)]

    def episode_specs(
        self, seating: Mapping[str, str], *, count: int | None = None
    ) -> list[EpisodeSpec]:
        """Return `count` episode specs; tasks and seeds are the same for every seating.

        All tasks are played equally often. If the number of tasks does not divide `count`, the
        remaining episodes take random tasks, because the list may be sorted.
        """
        arena, specs = self.arena(), []
        count = self.episodes if count is None else count
        tasks: list[Task] = []
        if self.tasks:
            whole, rest = divmod(count, len(self.tasks))
            order = Random(derive(self.seed, "study", "order"))
            tasks = [*self.tasks] * whole + order.sample(self.tasks, rest)
        for number in range(count):
            at = derive(self.seed, "study", number)
            task = tasks[number] if tasks else default_task_of(arena, Random(derive(at, "task")))
            specs.append(EpisodeSpec(task=task, seed=at, policy_map=seating))
        return specs

    def rollout(
        self, arena: Callable[[], Arena] | None = None, *, max_turns: int | None = None
    ) -> Rollout:
        """Return a rollout of these games, or of another `arena`.

        `max_turns` replaces the number of turns in `rollout_settings`, if it is given.
        """
        settings = self.rollout_settings
        if max_turns is not None:
            settings = settings.changed(max_turns=max_turns)
        return Rollout(
            arena=arena or self.arena,
            agent_specs=self.agent_specs,
            engines=self.engines,
            renderers=self.renderers,
            settings=settings,
        )

    def run(
        self, seating: Mapping[str, str], *, arena: Callable[[], Arena] | None = None
    ) -> list[Episode]:
        """Play all episodes with these policies (agent to policy) and return them.

        Raises ConfigError with the error of the first one if all of them failed.
        """
        self.cells += 1
        ACTIVITY.begin(f"playing, cell {self.cells}")
        episodes = self.count(self.rollout(arena).run(self.episode_specs(seating)))
        if episodes and all(episode.status is Status.FAILED for episode in episodes):
            default = " (they play the arena's default tasks, because the run has no evaluation)"
            players = ", ".join(dict.fromkeys(seating.values()))
            raise ConfigError(
                f"all {len(episodes)} games of {self.arena().name} with {players} failed"
                f"{'' if self.tasks else default}; mend the error of the first one: "
                f"{episodes[0].error}"
            )
        return episodes

    def count(self, episodes: list[Episode]) -> list[Episode]:
        """Count how the episodes ended and which agents moved; return the episodes."""
        self._counts.count(episodes)
        return episodes

    def agent_spec(self, policy: str, agent: str) -> AgentSpec:
        """Return the specification of an agent that this policy plays."""
        agent_spec = self.agent_specs[role_of(agent)]
        if policy == agent_spec.policy:
            return agent_spec
        return replace(agent_spec, policy=policy, renderer=self.renderers[policy])

    def scores(self, episodes: Sequence[Episode], metric: str | None = None) -> np.ndarray:
        """Return [N] values of a metric (None: the main one); NaN if an episode failed or lacks it.

        `return` is the mean over the agents that take part in the task (`Arena.agents_of`). The
        return of a truncated episode is what was paid. As in evaluations, a truncated episode
        without a metric of the arena counts as 0 if the arena declares that more of it is better:
        an answer that was never given is not right. `record` counts those that are left out.
        """
        name = metric or self.metrics[0]
        agents = self._paid(name)
        if agents:
            arena = self.arena()
            return np.array([_mean_return(episode, agents, arena) for episode in episodes])
        self._counts.ask(name, episodes)
        found = []
        for episode in episodes:
            value = math.nan if episode.status is Status.FAILED else episode.metrics.get(name)
            if value is None and episode.status is Status.TRUNCATED:
                if self._declared.more_is_better(f"{episode.task.type}/{name}"):
                    value = 0.0
                else:
                    self._counts.left_out[name] += 1
            found.append(math.nan if value is None else value)
        return np.array(found)

    @property
    def less_is_better(self) -> bool:
        """True if the arena declares that less of the main metric is better."""
        declared = self._declared.of(self.metrics[0])
        return declared is not None and declared.better == "lower"

    @cached_property
    def _declared(self) -> ArenaMetrics:
        return measured_by(self.arena())

    def draws(self, episodes: Sequence[Episode], *, given: bool = False) -> Draws:
        """Return the resampling for intervals of statistics over these episodes.

        `given` is True if the tasks are fixed, see `Draws`.
        """
        tasks = [episode.task.id for episode in episodes]
        return Draws(tasks=tasks, seed=self.seed, given=given)

    def record(self) -> dict[str, Any]:
        """Return the settings, with the fractions of failed episodes and of turns without action.

        `truncated_left_out` has the number of truncated episodes that a metric leaves out, if any.

        Raises ConfigError if the main metric was requested and no episode of the study had it.
        """
        self._counts.check_measured(self.metrics[0], others=[RETURN])
        settings = {**self.params, "episodes_per_cell": self.episodes, "seed": self.seed}
        return {**settings, **self._counts.to_json()}

    def check_metric(self) -> None:
        """Check the name of the main metric before a study plays its games.

        A name that the arena does not declare is looked for in one trial game, which counts in no
        result. Raises ConfigError if that game was finished without the metric.
        """
        name, arena = self.metrics[0], self.arena()
        if self._paid(name) or measured_by(arena).of(name) is not None:
            return
        (trial,) = self.rollout().run(self.episode_specs({}, count=1))
        if trial.status is Status.FINISHED and name not in trial.metrics:
            raise ConfigError(
                f"--metric {name}: {arena.name} does not declare it, and a trial game lacks it; "
                f"{nearest(name, [*arena.measures, *trial.metrics, RETURN])}"
            )

    def admit(
        self, references: Sequence[Reference], *, any_role: bool = False
    ) -> list[StudyPlayer]:
        """Load the policies of these references, so that they can be seated.

        `any_role` allows them in any role. Raises ConfigError for a player that cannot play the
        arena's roles. A note names each player that was trained with another arena or other
        prompts.
        """
        players = [self._admit(reference, any_role) for reference in references]
        labels = [player.label for player in players]
        return [
            replace(player, label=str(reference.run) + "@" + player.label.rpartition("@")[2])
            if labels.count(player.label) > 1
            else player
            for player, reference in zip(players, references, strict=True)
        ]

    def seated(self, names: Sequence[str], *, option: str) -> list[StudyPlayer]:
        """Return players that the run itself can seat: its opponents and its league's snapshots.

        Raises ConfigError, with the name of the option, for an unknown name.
        """
        check_known(names, self.renderers, where=option)
        roles = list(self.arena().roles)
        return [StudyPlayer(label=name, policies=dict.fromkeys(roles, name)) for name in names]

    def close(self) -> None:
        """Close the engines and opponents of the admitted players."""
        self._opened.close()

    def _admit(self, reference: Reference, any_role: bool) -> StudyPlayer:
        player, policies, others = reference.load(
            list(self.arena().roles), opened=self._opened, any_role=any_role
        )
        differs = settings_that_differ(self._config, Run.open(reference.run).config())
        if differs:
            self.notes.append(
                f"{player.label} was trained with another {' and '.join(differs)} than this game's"
            )
        engine: Engine = build(self._config["engine"], where="engine")
        self._opened.callback(engine.close)
        for name, policy in policies.items():
            engine.serve(name, policy.model, policy.renderer.end_ids)
            self.engines[name], self.models[name] = engine, policy.model
            self.renderers[name] = policy.renderer
        for name, opponent in others.items():
            self.engines[name] = opponent
            self.renderers[name] = opponent.renderer or ByteRenderer()
        for role, name in player.policies.items():
            if not policies[name].learn if name in policies else name in others:
                who = name.rpartition(":")[2]
                self.notes.append(
                    f"{player.label}: {role} is played by {who}, which does not learn"
                )
        return player

    def _paid(self, metric: str) -> list[str]:
        """Return the agents whose mean return the metric is, of all tasks; [] for a metric of the
        arena."""
        first, _, who = metric.partition("/")
        if first != RETURN:
            return []
        if not who:
            return self.agents
        found = [agent for agent in self.agents if who in (agent, role_of(agent))]
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
    """Open the games of an evaluation of a run, and release services and engines at the end.

    Args:
        run: The run folder.
        evaluation: Name of the evaluation; None: the first. A run without evaluations plays the
            default tasks of its arena.
        episodes: Number of episodes per cell; None: as many as the evaluation plays.
        metric: The main metric; None: the evaluation's first. See `StudyMatches.check_metric`.
        seed: Seed of arenas and samples.
        changes: Overrides of the run's config, such as arena.rounds=4.
    Raises:
        ConfigError: For an unknown evaluation or metric, or a change that studies do not use.
        RunError: If `run` is not a run folder, or has no checkpoint.
    """
    from selfplay.experiment.experiment import Experiment  # loads torch

    changed = load_changed(run, changes) if changes else Run.open(run).config()
    config = with_local_runtime(changed)
    _check_used(changes, changed, config)
    experiment = Experiment(config, unplayed=("arena",) if config["evaluations"] else ())
    known = experiment.players.evaluations
    if evaluation is not None and evaluation not in known:  # before models are loaded
        experiment.close()
        raise ConfigError(f"--evaluation {evaluation}: {nearest(evaluation, known)}")
    experiment.load(places(run)[-1], learning=False)
    with (
        closing(experiment),
        closing(_games(experiment, evaluation, episodes, metric, seed)) as games,
    ):
        asked = experiment.players.evaluations.values()
        if metric is not None and all(metric not in each.metrics.values() for each in asked):
            games.check_metric()
        games.params |= {"changed": " ".join(changes)} if changes else {}
        yield games


def _check_used(changes: Sequence[str], asked: Mapping[str, Any], used: Mapping[str, Any]) -> None:
    """Raise ConfigError for a change of a key that the config for finished runs replaces."""
    for change in changes:
        key = change.lstrip("+~").partition("=")[0].partition(".")[0]
        if key in (*LOCAL_DEFAULTS, "trackers") and asked.get(key) != used.get(key):
            raise ConfigError(
                f"--set {change}: a study plays in this process, with the engine of transformers "
                f"and without trackers; leave {key} out"
            )


def _games(
    experiment: "Experiment",
    evaluation: str | None,
    episodes: int | None,
    metric: str | None,
    seed: int,
) -> StudyMatches:
    name = evaluation or next(iter(experiment.evaluations), None)
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
        agent_specs=rollout.agent_specs,
        tasks=tasks,
        engines=dict(rollout.engines),
        renderers=dict(rollout.renderers),
        models={n: policy.model for n, policy in experiment.policies.items()},
        metrics=metrics,
        episodes=episodes or count,
        seed=seed,
        rollout_settings=rollout.settings.at(None),
        params={
            "arena": rollout.arena().name,
            "tasks": f"evaluation {name}" if name else "the arena's default tasks",
            "metric": metrics[0],
        },
        _config=experiment.config,
    )


def _mean_return(episode: Episode, agents: Sequence[str], arena: Arena) -> float:
    """Return the mean return over those of the agents that take part in the episode's task.

    It is 0 if none of them does, because they are paid nothing, and NaN for a failed episode.
    """
    if episode.status is Status.FAILED:
        return math.nan
    there = set(arena.agents_of(episode.task))
    paid = [own_pay(episode, agent) for agent in agents if agent in there]
    return sum(paid) / max(len(paid), 1)
