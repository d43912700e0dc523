"""An experiment: everything that a config names, built and wired."""

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from selfplay import checkpoint
from selfplay import config as configs
from selfplay.arena import Arena
from selfplay.build import TARGET, build, construct, fit, prepare
from selfplay.credit import Credit
from selfplay.curriculum import Curriculum
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError, nearest
from selfplay.evaluation import Evaluation
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Objective
from selfplay.policy import Policy, load_policy
from selfplay.population import Population
from selfplay.rollout import Rollout, Seat
from selfplay.sampler import Sampler
from selfplay.seeds import derive
from selfplay.settings import Settings
from selfplay.warmstart import resolve_model

# What the program fills in, and a config therefore may not.
LEARNER = ("model", "objective", "reference", "seed")
ENGINE = ("models", "end_ids")
ROLLOUT = ("arena", "seats", "engines")
SEAT = ("role", "policy", "renderer")


def validate(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, in one line, for the first thing in a config that could not be used.

    Builds nothing that costs: no model is loaded and no process is started.
    """
    configs.validate(config)
    construct(Settings, {k: v for k, v in config["run"].items() if k != TARGET}, where="run")
    fit(Learner, config["learner"], where="learner", reserved=LEARNER)
    fit(TransformersEngine, config["engine"], where="engine", reserved=ENGINE)
    fit(Rollout, config["rollout"], where="rollout", reserved=ROLLOUT)
    known = ("default", *config["roles"])
    for role, node in config["sampling"].items():
        if role not in known:
            raise ConfigError(f"sampling.{role}: no such role; {nearest(role, known)}")
        fit(Seat, node, where=f"sampling.{role}", reserved=SEAT)
    for name, node in config["evaluations"].items():
        fit(Evaluation, node, where=f"evaluations.{name}", pending=("arena", "tasks"))
    population = build(config["population"], where="population")
    for name, node in population.policies(config["roles"]).items():
        where = f"population.special.{name}" if name in population.special else "policy"
        fit(load_policy, node, where=where, pending=("model",), reserved=("name",))


class Experiment:
    """The objects of a run. `state_dict` is what a checkpoint keeps of them."""

    def __init__(self, config: Mapping[str, Any], *, saved: Path | None = None) -> None:
        """Args:
        config: Plain data, as `selfplay.config.load` gives it.
        saved: A checkpoint to take the policies from, in place of the models that they began as.

        Raises ConfigError for the first thing that cannot be built.
        """
        validate(config)
        self._started = time.time()
        self.config = config
        self.seed = int(config["seed"])
        self.settings: Settings = build(config["run"], where="run")
        set_up_torch(self.settings, self.seed)
        self.services: dict[str, Any] = {"seed": self.seed}
        self.evaluations_before: dict[str, dict[str, float]] | None = None
        self.evaluations_after: dict[str, dict[str, float]] | None = None
        self.seconds_before = 0.0
        self.step = 0
        try:
            self._build_all(saved)
        except BaseException:
            self.close()
            raise

    def _build_all(self, saved: Path | None) -> None:
        config = self.config
        for name, node in config["services"].items():
            self.services[name] = build(node, where=f"services.{name}", provided=self.services)
        self.population: Population = build(config["population"], where="population")
        self.objective: Objective = self._build("objective")
        self.curriculum: Curriculum = self._build("curriculum")
        self.sampler: Sampler = self._build("sampler")
        self.credit: Credit = self._build("credit")
        self._roles = {
            name: build(node, where=f"roles.{name}", provided=self.services)
            for name, node in config["roles"].items()
        }
        arena = self._arena(config["arena"], where="arena")
        evaluations = {
            name: self._evaluation(f"evaluations.{name}", node)
            for name, node in config["evaluations"].items()
        }
        # The policies come last: a warm start, or a large model, costs minutes.
        # A KL term pulls towards what a policy began as, which a checkpoint no longer has.
        self.policies = self._load_policies(None if self.objective.kl else saved)
        self.learners = self._build_learners()
        self.engine = TransformersEngine(
            {name: policy.model for name, policy in self.policies.items()},
            {name: policy.renderer.end_ids for name, policy in self.policies.items()},
            **fit(TransformersEngine, config["engine"], where="engine", reserved=ENGINE),
        )
        self.rollout = self._rollout(arena)
        self.evaluations = {
            name: (each, self._rollout(each.arena, temperature=each.temperature))
            for name, each in evaluations.items()
        }

    @classmethod
    def resume(cls, config: Mapping[str, Any], place: Path) -> "Experiment":
        """The experiment as a checkpoint left it."""
        experiment = cls(config, saved=place)
        try:
            experiment.restore(place)
        except BaseException:
            experiment.close()
            raise
        return experiment

    def restore(self, place: Path) -> None:
        """Take over a checkpoint's state."""
        state = checkpoint.load(place, policies=self.policies, learners=self.learners)
        self.step = state["step"]
        self.curriculum.load_state_dict(state["curriculum"])
        self.credit.load_state_dict(state["credit"])
        self.evaluations_before = state["evaluations_before"]
        self.evaluations_after = state["evaluations_after"]
        self.seconds_before = state["seconds"]
        for name, policy in self.policies.items():
            self.engine.publish(name, policy.model.state_dict(), policy.version)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights and optimizers, as plain JSON data."""
        return {
            "curriculum": self.curriculum.state_dict(),
            "credit": self.credit.state_dict(),
            "evaluations_before": self.evaluations_before,
            "evaluations_after": self.evaluations_after,
            "seconds": self.seconds(),
        }

    def seconds(self) -> float:
        """Wall-clock seconds of the run, those before a resume included."""
        return self.seconds_before + time.time() - self._started

    def publish(self, name: str) -> None:
        """Let the engine sample with a policy's updated weights."""
        policy = self.policies[name]
        policy.version += 1
        self.engine.publish(name, policy.model.state_dict(), policy.version)

    def service_figures(self) -> dict[str, float]:
        """What the services counted since they were last asked."""
        figures: dict[str, float] = {}
        for name, service in self.services.items():
            if hasattr(service, "drain_counts"):
                counts = service.drain_counts()
                figures |= {f"service/{name}/{key}": float(value) for key, value in counts.items()}
        return figures

    def begin_step(self, step: int) -> None:
        """Seed what has no seed of its own, such as a model's dropout, by the step it is for."""
        torch.manual_seed(derive(self.seed, "step", step))

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
            "command": f"selfplay train --config-path {folder} run.name=NEW_NAME",
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
        }

    def close(self) -> None:
        """Release services that hold processes."""
        for service in self.services.values():
            if hasattr(service, "close"):
                service.close()

    # Building ----------------------------------------------------------------------------------

    def _build(self, key: str) -> Any:
        return build(self.config[key], where=key, provided=self.services)

    def _load_policies(self, saved: Path | None) -> dict[str, Policy]:
        found = {}
        for name, node in self.population.policies(self.config["roles"]).items():
            where = f"policy {name!r}"
            settings = {key: value for key, value in node.items() if key != "model"}
            if saved is None:
                model = resolve_model(node.get("model"), self.config["warmstart"], where=where)
            else:
                model = str(saved / "policies" / name)
            found[name] = load_policy(name, model=model, **settings)
        return found

    def _build_learners(self) -> dict[str, Learner]:
        settings = fit(Learner, self.config["learner"], where="learner", reserved=LEARNER)
        learners = {}
        for name, policy in self.policies.items():
            if not policy.learn:
                continue
            if self.objective.kl:
                policy.freeze_reference()
            given = {"objective": self.objective, "reference": policy.reference, "seed": self.seed}
            learners[name] = construct(
                Learner, {"model": policy.model, **given, **settings}, where="learner"
            )
        if not learners:
            raise ConfigError("population: no policy learns; set learn=true for at least one")
        return learners

    def _arena(self, node: Mapping[str, Any], *, where: str) -> Callable[[], Arena]:
        """What makes a fresh arena; one is made now, to see that its roles are there."""
        target, arguments = prepare(node, where=where, provided=self.services)

        def make() -> Arena:
            made: Arena = construct(target, arguments, where=where)
            return made

        for role in make().roles:
            if role not in self._roles:
                raise ConfigError(f"{where}: no role {role!r}; {nearest(role, self._roles)}")
        return make

    def _evaluation(self, where: str, node: Mapping[str, Any]) -> Evaluation:
        rest = {key: value for key, value in node.items() if key != "arena"}
        built = build(rest, where=where, provided=self.services)
        checked = fit(Evaluation, built, where=where, provided=("arena",))
        return Evaluation(arena=self._arena(node["arena"], where=f"{where}.arena"), **checked)

    def _rollout(self, arena: Callable[[], Arena], **seat: Any) -> Rollout:
        seats = {role: self._seat(role, **seat) for role in arena().roles}
        engines = dict.fromkeys(self.policies, self.engine)
        settings = fit(Rollout, self.config["rollout"], where="rollout", reserved=ROLLOUT)
        return Rollout(arena=arena, seats=seats, engines=engines, **settings)

    def _seat(self, role: str, **overrides: Any) -> Seat:
        policy = self.population.policy_of(role)
        limits = {**self.config["sampling"]["default"], **self.config["sampling"].get(role, {})}
        return Seat(
            role=self._roles[role],
            policy=policy,
            renderer=self.policies[policy].renderer,
            **fit(Seat, {**limits, **overrides}, where=f"sampling.{role}", reserved=SEAT),
        )


def set_up_torch(settings: Settings, seed: int) -> None:
    """Threads, kernels and seed, for a run and for the warm start before it."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    # One line of our own says more than a bar for every file that is read or written.
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=False)
