"""An experiment: everything that a config names, built and wired."""

import platform
import shlex
import time
from collections.abc import Mapping
from importlib.metadata import version
from inspect import isclass
from pathlib import Path
from typing import Any

import torch

from selfplay import collapse
from selfplay.arena import Arena
from selfplay.config import compose, trust
from selfplay.config.instantiate import TARGET, build, call, check_arguments, import_target
from selfplay.config.run_config import RunSettings, set_up_torch
from selfplay.credit import Credit, Stateful
from selfplay.credit.missing_signals import Silence
from selfplay.credit.shaping import Shaping
from selfplay.curriculum import Curriculum
from selfplay.errors import ConfigError, RunError, one_line
from selfplay.experiment import league
from selfplay.experiment.validation import check_roles, check_sampler_supports_credit
from selfplay.learner import Trainer, checkpoint
from selfplay.learner.objective import Objective
from selfplay.models.population import Population
from selfplay.rng import derive
from selfplay.rollout import policies, policy_pool
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.rollout import check_sampling_limits
from selfplay.rollout.setup import RolloutSetup
from selfplay.run import metrics
from selfplay.run.declarations import RunMetrics, measured_by, reported
from selfplay.run.metrics import Outcomes
from selfplay.run.records import read_metrics
from selfplay.runtime import Runtime
from selfplay.sampler import Sampler, prefetch
from selfplay.sampler.prefetch import Batches, OnDemandBatches, PrefetchedBatches

METHODS = {
    "run": "keeps_checkpoint",
    "curriculum": "tasks",
    "population": "policy_of",
    "sampler": "sample",
    "credit": "assign",
    "collapse": "seed",
    "runtime": "check",
}
"""Name of the method that the class under each key must have."""


def validate(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, in one line, for the first thing in a config that could not be used.

    Builds nothing that costs: no model is loaded and no process is started.
    """
    compose.validate(config)
    _refuse_other_kinds(config)
    check_sampler_supports_credit(config["credit"], config["sampler"])
    check_roles(config["credit"], config["shaping"], config["roles"])
    collapse.validate(config)
    build(config["trackers"], where="trackers")  # so that a missing package is told of now
    call(RunSettings, {k: v for k, v in config["run"].items() if k != TARGET}, where="run")
    runtime: Runtime = build(config["runtime"], where="runtime")
    runtime.check(config)
    prefetch.validate(config, runtime.max_staleness)
    policy_pool.validate(
        sampling=config["sampling"], rollout=config["rollout"], roles=config["roles"]
    )
    population: Population = build(config["population"], where="population")
    policies.validate(
        population,
        config["roles"],
        learner=config["learner"],
        warmstart=config["warmstart"],
        here=runtime.device is None,
    )
    policies.check_context_length(
        population,
        policy_pool.answers(sampling=config["sampling"], roles=config["roles"]),
        warmstart=config["warmstart"],
        longest=config["engine"].get("max_length"),
    )
    league.validate(config["league"], population, config["roles"])
    known = (*population.policies(config["roles"]), *population.opponents)
    for name, node in config["evaluations"].items():
        where = f"evaluations.{name}"
        fitted = check_arguments(Evaluation, node, where=where, pending=("arena", "tasks"))
        policy_pool.check_known(fitted.get("opponents", ()), known, where=f"{where}.opponents")
        try:
            check_sampling_limits(temperature=fitted.get("temperature", 1.0))
        except ValueError as error:
            raise ConfigError(f"{where}.{error}") from error


def _refuse_other_kinds(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a class without the method that its config key needs."""
    for key, method in METHODS.items():
        target = import_target(config[key][TARGET], key)
        if isclass(target) and not hasattr(target, method):
            raise ConfigError(
                f"{key}.{TARGET}: {config[key][TARGET]} has no method {method!r}, so it is not "
                f"a valid {key}; see selfplay list {key}"
            )


def notes(config: Mapping[str, Any]) -> list[str]:
    """Yield a line for each valid setting that does not do what its value suggests."""
    steps = int(config["run"]["steps"])
    updates = steps * int(config["learner"].get("mini_batches", 1))
    warmup = int(config["learner"].get("warmup_steps", 0))
    if updates and warmup > updates:
        return [
            f"learner.warmup_steps: {warmup} is more than the {updates} optimizer steps of "
            f"run.steps={steps}, so that the learning rate ends at {updates / warmup:.2g} of "
            "learner.lr"
        ]
    return []


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
    """The objects of a run. `state_dict` is what a checkpoint keeps of them."""

    def __init__(self, config: Mapping[str, Any], *, saved: Path | None = None) -> None:
        """Args:
        config: Plain data, as `selfplay.config.compose.load` gives it.
        saved: A checkpoint to take the policies from, in place of the models that they began as.

        Raises ConfigError for the first thing that cannot be built.
        """
        validate(config)
        self._started = time.time()
        self.config = config
        self.seed = int(config["seed"])
        self.settings: RunSettings = build(config["run"], where="run")
        set_up_torch(self.settings, self.seed)
        self.evaluations_before: dict[str, dict[str, float]] | None = None
        self.evaluations_after: dict[str, dict[str, float]] | None = None
        self.outcomes = Outcomes()
        self.seconds_before = 0.0
        self.step = 0
        self.runtime: Runtime = build(config["runtime"], where="runtime")
        self.players = RolloutSetup(config)
        self.world, self.population = self.players.world, self.players.population
        try:
            self._build_all(saved)
        except BaseException:
            self.close()
            raise

    def _build_all(self, saved: Path | None) -> None:
        config, players = self.config, self.players
        self.objective: Objective = self.world.build("objective")
        self.curriculum: Curriculum = self.world.build("curriculum")
        self.watch: collapse.CollapseMonitor = self.world.build("collapse")
        self.shaping = Shaping([*self.world.build("shaping").values()])
        arena = self.world.arena
        self.credit: Credit = self.world.build("credit", arena=arena)
        self.silence = Silence(self.credit)
        # What a sampler drops for want of signal is for the credit to say.
        group_by = getattr(self.credit, "group_by", "role")
        self.sampler: Sampler = self.world.build("sampler", group_by=group_by)
        self.declared = declared_by(arena(), players.evaluations)
        plan = league.LeaguePlan(config["league"], arena=arena(), population=self.population)
        # The policies come last: a warm start, or a large model, costs minutes.
        self.engine = self.runtime.engine(config, players)
        players.load(
            self.engine,
            saved=saved,
            afresh=self.objective.reads_reference,
            device=self.runtime.device,
        )
        self.policies = players.policies
        self.learners = self.runtime.trainers(players, self.objective)
        self.rollout_fn = self.runtime.rollout_fn(players)
        self.evaluations = {
            name: (each, self.runtime.rollout_fn(players, name))
            for name, each in players.evaluations.items()
        }
        self.league = plan.league(
            policies=self.policies,
            learners=self.learners,
            policy_pool=players.policy_pool,
            engine=self.engine,
            rollout_fn=self.rollout_fn,
            seed=self.seed,
        )
        now = OnDemandBatches(
            curriculum=self.curriculum,
            sampler=self.sampler,
            rollout_fn=self.league.run,
            seed=lambda: self.watch.seed(self.seed),
        )
        self.batches: Batches = now
        if self.runtime.max_staleness:
            self.batches = PrefetchedBatches(
                now,
                max_staleness=self.runtime.max_staleness,
                last=self.settings.steps,
                keeps=self.settings.keeps_checkpoint,
            )

    @classmethod
    def resume(
        cls, config: Mapping[str, Any], place: Path, *, learning: bool = True
    ) -> "Experiment":
        """The experiment in the state of a checkpoint; without `learning` it can only play."""
        experiment = cls(config, saved=place)
        try:
            try:
                experiment.restore(place, learning=learning)
            except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
                raise RunError(
                    f"checkpoint {place}: its state does not fit the config of the run: "
                    f"{one_line(error)}; resume from an older one"
                ) from error
        except BaseException:
            experiment.close()
            raise
        return experiment

    def restore(self, place: Path, *, learning: bool = True) -> None:
        """Restore a checkpoint's state; episodes that were sampled but not learned from are lost.

        Without `learning` the state of the learners is left unread.
        """
        self.batches.stop()
        learners = self.trained() if learning else None
        state = checkpoint.load(place, policies=self.policies, learners=learners)
        self.step = state["step"]
        self.curriculum.load_state_dict(state["curriculum"])
        self.credit.load_state_dict(state["credit"])
        self.watch.load_state_dict(state["collapse"])
        self.evaluations_before = state["evaluations_before"]
        self.evaluations_after = state["evaluations_after"]
        self.outcomes.load_state_dict(state.get("outcomes", ()))  # older runs have none
        self.seconds_before = state["seconds"]
        for name, policy in self.policies.items():
            self.engine.publish(name, policy.model.state_dict(), policy.version)
        self.league.load_state_dict(state["league"], place)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights and optimizers, as plain JSON data."""
        return {
            "curriculum": self.batches.curriculum_state(),
            "credit": self.credit.state_dict(),
            "league": self.league.state_dict(),
            "collapse": self.watch.state_dict(),
            "outcomes": self.outcomes.state_dict(),
            "evaluations_before": self.evaluations_before,
            "evaluations_after": self.evaluations_after,
            "seconds": self.seconds(),
        }

    def seconds(self) -> float:
        """Wall-clock seconds of the run, those before a resume included."""
        return self.seconds_before + time.time() - self._started

    def rest_engine(self) -> None:
        """Let an engine that shares a device with the learners give its memory to them."""
        if hasattr(self.engine, "rest"):
            self.engine.rest()

    def publish(self, name: str) -> None:
        """Let the engine sample with a policy's updated weights."""
        policy = self.policies[name]
        policy.version += 1
        self.engine.publish(name, self.learners[name].weights(), policy.version)

    def service_metrics(self) -> dict[str, float]:
        """What services and engines counted since they were last asked, here and elsewhere."""
        here, elsewhere = self.players.counts(), self.runtime.counts()
        return {
            name: here.get(name, 0.0) + elsewhere.get(name, 0.0) for name in {**here, **elsewhere}
        }

    def learning(self, step: int) -> dict[str, Trainer]:
        """The learners of the policies that learn at a step."""
        return {
            name: learner
            for name, learner in self.learners.items()
            if self.population.learns(name, step)
        }

    def trained(self) -> dict[str, Stateful]:
        """The learners, and what the credit method trains beside them."""
        modules = self.credit.modules()
        return {**self.learners, **{f"credit/{name}": each for name, each in modules.items()}}

    def begin_step(self, step: int) -> None:
        """Seed what has no seed of its own, such as a model's dropout, by the step it is for."""
        torch.manual_seed(derive(self.seed, "step", step))
        self.league.begin_step(step, self.learning(step))

    def summary(self, folder: Path) -> dict[str, Any]:
        """What summary.json says."""
        before, after = self.evaluations_before or {}, self.evaluations_after or {}
        packages = ("selfplay", "torch", "transformers", "pettingzoo", "hydra-core", "numpy")
        return {
            "name": folder.name,
            "experiment": self.settings.experiment,
            "seed": self.seed,
            "steps": self.step,
            "seconds": round(self.seconds(), 1),
            "evaluations": {
                name: {"before": before.get(name, {}), "after": figures}
                for name, figures in after.items()
            },
            "totals": {
                "policy_versions": {name: p.version for name, p in self.policies.items()},
                "parameters": {name: p.model.num_parameters() for name, p in self.policies.items()},
            },
            "troubles": metrics.of_troubles(
                read_metrics(folder / "metrics.jsonl").values(),
            ),
            "command": shlex.join(
                [
                    *("selfplay", "train", "--config-path", str(folder), "run.name=NEW_NAME"),
                    *trust.flags(trust.foreign(self.config)),
                ]
            ),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
        }

    def close(self) -> None:
        """Release services, engines and the runtime, which hold processes or connections."""
        try:
            if hasattr(self, "batches"):
                self.batches.stop()
        finally:
            try:
                self.players.close()
            finally:
                self.runtime.close()
        if hasattr(self, "batches"):
            self.batches.close()
