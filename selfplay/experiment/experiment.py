"""An experiment: all objects of a run, built from its config and connected."""

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from selfplay.arena import Arena
from selfplay.author_code import naming
from selfplay.config import plain_data, trust
from selfplay.config.instantiate import TARGET, build
from selfplay.config.run_config import RunSettings, set_up_process
from selfplay.credit import Credit, Stateful
from selfplay.credit.assigned import saved
from selfplay.credit.shaping import Shaping
from selfplay.curriculum import Curriculum
from selfplay.errors import RunError, one_line
from selfplay.experiment.collapse import CollapseMonitor
from selfplay.experiment.validation import check_teacher_folders, validate
from selfplay.league.config import LeagueConfig
from selfplay.league.league import League
from selfplay.league.snapshots import Snapshots
from selfplay.learner import PolicyLearner, checkpoint
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.learner.precision import in_bfloat16
from selfplay.rng import derive
from selfplay.rollout.agent_spec import scheduled_limits
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.setup import RolloutSetup
from selfplay.run import metrics
from selfplay.run.activity import ACTIVITY
from selfplay.run.declarations import RunMetrics, measured_by, reported
from selfplay.run.metrics import Outcomes
from selfplay.run.record_reader import read_metrics
from selfplay.run.run_folder import METRICS, step_of
from selfplay.run.sessions import versions
from selfplay.run.trackers import Tracker
from selfplay.runtime import Runtime
from selfplay.sampler import Sampler
from selfplay.sampler.prefetch import Batches, OnDemandBatches, PrefetchedBatches


def declared_by(arena: Arena, evaluations: Mapping[str, Evaluation]) -> RunMetrics:
    """Collect the declarations of metrics by the arenas of training and of the evaluations."""
    return RunMetrics(
        arena=measured_by(arena),
        evaluations={
            name: reported(
                measured_by(each.arena()),
                each.metrics,
                type=each.tasks[0].type if each.tasks else "",
                opponents=each.opponents,
            )
            for name, each in evaluations.items()
        },
    )


class Experiment:
    """The objects of a run.

    The commands make one, let it `load` the models, and pass it to a `Trainer` or run its
    evaluations; the caller must close it. `state_dict` returns what a checkpoint stores besides
    weights and optimizers.
    """

    def __init__(self, config: Mapping[str, Any], *, unplayed: Collection[str] = ()) -> None:
        """Build and validate every object that needs no policy.

        `config` is plain data, as `selfplay.config.compose.load` returns it. For `unplayed` see
        `selfplay.rollout.setup.Components`.

        Raises ConfigError for the first part that cannot be built, or does not fit the others.
        """
        plain_data.check_config(config)
        self._started = time.monotonic()
        self.seed = int(config["seed"])
        self.evaluations_before: dict[str, dict[str, float]] | None = None
        self.evaluations_after: dict[str, dict[str, float]] | None = None
        self.outcomes = Outcomes()
        self.seconds_before = 0.0
        self.step = 0
        self.league: League | None = None
        self._batches: Batches | None = None
        self.players = RolloutSetup(config, unplayed=unplayed)
        self.population = self.players.population
        try:
            self.runtime: Runtime = self.players.build("runtime")
        except BaseException:
            self.players.close()
            raise
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        players = self.players
        self.settings: RunSettings = players.build("run")
        self.trackers: Mapping[str, Tracker] = players.build("trackers")
        self.objective: Objective = players.build("objective")
        self.curriculum: Curriculum = players.build("curriculum")
        self.collapse: CollapseMonitor = players.build("collapse")
        shaping = players.build("shaping")
        self.shaping = Shaping(shaping)
        self.credit: Credit = players.build(
            "credit", arena=players.arena, learns=self.population.learns
        )
        # `dynamic` drops groups without a signal for the credit method; `resample` needs to know
        # which roles can call tools.
        tool_roles = [name for name, role in players.roles.items() if role.tools is not None]
        self.sampler: Sampler = players.build("sampler", credit=self.credit, tool_roles=tool_roles)
        self._league: LeagueConfig | None = players.build(
            "league", arena=players.arena(), population=self.population
        )
        self.notes: Sequence[str] = validate(
            players,
            settings=self.settings,
            runtime=self.runtime,
            objective=self.objective,
            shaping=shaping,
            credit=self.credit,
            curriculum=self.curriculum,
            sampler=self.sampler,
            collapse=self.collapse,
            league=self._league,
        )
        """A line for each valid setting that does not do what its value suggests."""

    def load(self, saved: Path | None = None, *, learning: bool = True) -> "Experiment":
        """Load or make the models, which may take minutes, and return the experiment.

        Args:
            saved: A checkpoint whose state is restored.
            learning: Restore the learners too; False for an experiment that only plays, which
                loads no reference.
        Raises:
            ConfigError: For a model that cannot be loaded.
            RunError: For a checkpoint that does not fit the config.
        """
        if learning:
            check_teacher_folders(self.players.population)
        try:
            self._load_policies(saved, learning)
            self._make_learners(learning)
            self._make_rollouts()
            self._make_batches()
            if saved is not None:
                self._resume(saved, learning=learning)
        except BaseException:
            self.close()
            raise
        return self

    def _load_policies(self, saved: Path | None, learning: bool) -> None:
        """Start the engine, and load the policies of the config or of a checkpoint into it."""
        players = self.players
        set_up_process(self.settings, self.seed)
        ACTIVITY.begin("loading models")
        self.engine = self.runtime.engine(players)
        players.load(
            self.engine,
            saved=saved,
            afresh=learning and self.objective.reads_reference,
            device=self.runtime.device,
        )
        self.policies = players.policies
        players.check_context_length(self.policies)

    def _make_learners(self, learning: bool) -> None:
        """Fit the objective to the precision of engine and learners, and make the learners."""
        players = self.players
        if isinstance(self.objective, PolicyLoss):
            ranks = self.runtime.learner_device
            rounded = any(
                in_bfloat16(each.precision, ranks or self.policies[name].model.device.type)
                for name, each in players.learner_settings.items()
                if name in players.population.learning
            )
            exact = self.engine.exact and not rounded and not players.truncated()
            self.objective = self.objective.resolved(exact=exact)
        learned = self.objective
        if not learning and isinstance(learned, PolicyLoss):
            learned = replace(learned, kl=0.0)  # no reference
        self.learners = self.runtime.trainers(players, learned)

    def _make_rollouts(self) -> None:
        """Make the functions that play the games of training and of the evaluations."""
        players = self.players
        self.rollout_fn = self.runtime.rollout_fn(players)
        self.evaluations = {
            name: (each, self.runtime.rollout_fn(players, name))
            for name, each in players.evaluations.items()
        }

    def _make_batches(self) -> None:
        """Make the league, if the config has one, and the source of the batches of each step."""
        if self._league is not None:
            named = self._league.named().items()
            again = [name for name, player in named if player.matchmaking.reset]
            self.league = League(
                self._league,
                snapshots=Snapshots(
                    self.policies, self.players.policy_pool, self.engine, begin_again=again
                ),
                learners=self.learners,
                learning=self.learning,
                seed=self.seed,
                max_staleness=self.runtime.max_staleness,
            )
        self._batches = now = OnDemandBatches(
            curriculum=self.curriculum,
            sampler=self.sampler,
            rollout_fn=self.rollout_fn,
            seed=lambda: self.collapse.seed(self.seed),
            wrap=None if self.league is None else self.league.wrap,
        )
        if self.runtime.max_staleness:
            self._batches = PrefetchedBatches(
                now,
                max_staleness=self.runtime.max_staleness,
                last=self.settings.steps,
                keeps=self.settings.keeps_checkpoint,
            )

    def _resume(self, saved: Path, *, learning: bool) -> None:
        try:
            self.seconds_before = self.restore(saved, learning=learning)
            if self.step != step_of(saved):
                raise ValueError(f"state.json is of step {self.step}")
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise RunError(
                f"checkpoint {saved}: its state does not fit the config of the run: "
                f"{one_line(error)}; resume from an older one"
            ) from error

    @cached_property
    def declared(self) -> RunMetrics:
        """Declarations of metrics by the arenas of training and of the evaluations."""
        return declared_by(self.players.arena(), self.players.evaluations)

    @property
    def config(self) -> Mapping[str, Any]:
        """Config of the run, as plain data."""
        return self.players.config

    @property
    def batches(self) -> Batches:
        """Source of the groups of each step."""
        assert self._batches is not None
        return self._batches

    def restore(self, path: Path, *, learning: bool = True) -> float:
        """Restore a checkpoint; episodes that were sampled but not learned from are discarded.

        The method first waits until the games in progress have ended.

        Args:
            path: Folder of the checkpoint.
            learning: Restore the learners too; False for an experiment that only plays.
        Returns:
            The wall-clock seconds of the run up to the checkpoint.
        """
        self.batches.drain()
        learners = self.trained() if learning else None
        state = checkpoint.load(path, policies=self.policies, learners=learners)
        self.step = state["step"]
        parts: Mapping[str, Stateful] = {"curriculum": self.curriculum, "credit": self.credit}
        for key, part in parts.items():
            with naming(f"{key}: {type(part).__name__}.load_state_dict", part):
                part.load_state_dict(state[key])
        self.collapse.load_state_dict(state["collapse"])
        self.evaluations_before = state["evaluations_before"]
        self.evaluations_after = state["evaluations_after"]
        self.outcomes.load_state_dict(state.get("outcomes", ()))  # absent in older runs
        for name, policy in self.policies.items():
            self.engine.publish(name, policy.model.state_dict(), policy.version)
        if self.league is not None:
            self.league.load_state_dict(state["league"], path, step=self.step)
        return float(state["seconds"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state besides weights and optimizers, as plain JSON data."""
        return {
            "curriculum": self.batches.curriculum_state(),
            "credit": saved(self.credit),
            "league": {} if self.league is None else self.league.state_dict(),
            "collapse": self.collapse.state_dict(),
            "outcomes": self.outcomes.state_dict(),
            "evaluations_before": self.evaluations_before,
            "evaluations_after": self.evaluations_after,
            "seconds": self.seconds(),
        }

    def seconds(self) -> float:
        """Return the wall-clock seconds of the run, including those before a resume."""
        return self.seconds_before + time.monotonic() - self._started

    def rest_engine(self) -> None:
        """Let an engine that shares a device with the learners give its memory to them."""
        self.engine.sleep()

    def publish(self, name: str) -> None:
        """Send a policy's updated weights to the engine."""
        policy = self.policies[name]
        policy.version += 1
        self.engine.publish(name, self.learners[name].weights(), policy.version)

    def drain_service_metrics(self) -> dict[str, float]:
        """Return the counts of services and engines since the last call, in all processes."""
        here, elsewhere = self.players.drain_counts(), self.runtime.counts()
        return {
            name: here.get(name, 0.0) + elsewhere.get(name, 0.0) for name in {**here, **elsewhere}
        }

    def learning(self, step: int) -> dict[str, PolicyLearner]:
        """Return the learners of the policies that learn at a step."""
        return {
            name: learner
            for name, learner in self.learners.items()
            if self.population.learns(name, step)
        }

    def trained(self) -> dict[str, Stateful]:
        """Return everything that is trained: the learners, and the modules of the credit method."""
        modules = self.credit.modules()
        return {**self.learners, **{f"credit/{name}": each for name, each in modules.items()}}

    def limits(self, step: int) -> dict[str, float]:
        """Return the limits of sampling and turns that have a schedule, at a training step."""
        rollout = self.players.rollout
        return scheduled_limits(rollout.agent_specs, rollout.settings.schedules, step=step)

    def begin_step(self, step: int) -> None:
        """Seed the global generator of torch (e.g. for dropout), and tell the league the step."""
        torch.manual_seed(derive(self.seed, "step", step))
        if self.league is not None:
            self.league.begin_step(step)

    def summary(self, folder: Path) -> dict[str, Any]:
        """Return the content of summary.json."""
        before, after = self.evaluations_before or {}, self.evaluations_after or {}
        return {
            "name": folder.name,
            "experiment": self.settings.experiment,
            "seed": self.seed,
            "steps": self.step,
            "seconds": round(self.seconds(), 1),
            "evaluations": {
                name: {"before": before.get(name, {}), "after": results}
                for name, results in after.items()
            },
            "totals": {
                "policy_versions": {name: p.version for name, p in self.policies.items()},
                "parameters": {name: p.model.num_parameters() for name, p in self.policies.items()},
            },
            "troubles": metrics.of_troubles(
                read_metrics(folder / METRICS).values(),
            ),
            "command": shlex.join(
                [
                    *("selfplay", "train", "--config-path", str(folder), "run.name=NEW_NAME"),
                    *trust.flags(trust.needed(self.config)),
                ]
            ),
            "versions": versions(),
        }

    def close(self) -> None:
        """Release services, engines and the runtime, which hold processes or connections."""
        with ExitStack() as closed:  # calls the functions from the last to the first
            if self._batches is not None:
                closed.callback(self._batches.close)
            closed.callback(self.runtime.close)
            closed.callback(self.players.close)
            if self._batches is not None:
                closed.callback(self._batches.stop)


def check(config: Mapping[str, Any]) -> Sequence[str]:
    """Build and validate all objects of a config except the policies; return the notes for users.

    The warm start is built and not trained.

    A critic that copies a model (`credit.critic.model`) belongs to the credit method and is loaded.

    Raises ConfigError for the first setting that cannot be used, in one line.
    """
    experiment = Experiment(config)
    experiment.close()
    check_teacher_folders(experiment.players.population)
    if TARGET in config["warmstart"]:
        build(config["warmstart"], where="warmstart")
    return experiment.notes
