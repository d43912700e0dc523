"""An experiment: everything that a config names, built and wired."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from selfplay import checkpoint, members
from selfplay import config as configs
from selfplay.arena import Arena
from selfplay.build import TARGET, build, construct, fit, prepare
from selfplay.credit import Credit, Stateful
from selfplay.credit.needs import refuse_unfed
from selfplay.credit.shaping import Shaping
from selfplay.curriculum import Curriculum
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError, nearest
from selfplay.evaluation import Evaluation
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Surrogate
from selfplay.population import Population
from selfplay.rollout import Rollout, Seat
from selfplay.sampler import Sampler
from selfplay.seeds import derive
from selfplay.settings import Settings

# What the program fills in, and a config therefore may not.
ENGINE = ("models", "end_ids")
ROLLOUT = ("arena", "seats", "engines")
SEAT = ("role", "policy", "renderer")


def validate(config: Mapping[str, Any]) -> None:
    """Raise ConfigError, in one line, for the first thing in a config that could not be used.

    Builds nothing that costs: no model is loaded and no process is started.
    """
    configs.validate(config)
    refuse_unfed(config["credit"], config["sampler"])
    construct(Settings, {k: v for k, v in config["run"].items() if k != TARGET}, where="run")
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
    members.validate(
        population,
        config["roles"],
        learner=config["learner"],
        warmstart=config["warmstart"],
    )


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
        self.objective: Surrogate = self._build("objective")
        self.curriculum: Curriculum = self._build("curriculum")
        self.shaping = Shaping([*self._build("shaping").values()])
        self._roles = {
            name: build(node, where=f"roles.{name}", provided=self.services)
            for name, node in config["roles"].items()
        }
        arena = self._arena(config["arena"], where="arena")
        self.credit: Credit = self._build("credit", arena=arena)
        # What a sampler drops for want of signal is for the credit to say.
        within = getattr(self.credit, "within", "role")
        self.sampler: Sampler = self._build("sampler", within=within)
        evaluations = {
            name: self._evaluation(f"evaluations.{name}", node)
            for name, node in config["evaluations"].items()
        }
        # The policies come last: a warm start, or a large model, costs minutes.
        self.policies = members.load(
            self.population,
            config["roles"],
            warmstart=config["warmstart"],
            seed=self.seed,
            saved=saved,
            afresh=self.objective.reads_reference,
        )
        self.learners = members.learners(
            self.population,
            self.policies,
            settings=config["learner"],
            objective=self.objective,
            seed=self.seed,
        )
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
        state = checkpoint.load(place, policies=self.policies, learners=self.trained())
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

    def learning(self, step: int) -> dict[str, Learner]:
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

    def _build(self, key: str, **given: Any) -> Any:
        return build(self.config[key], where=key, provided={**self.services, **given})

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
    if settings.deterministic:
        # Without it, deterministic kernels refuse matrix products on a GPU. Read when the first
        # of them runs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=False)
