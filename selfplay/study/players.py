"""Players: the policies of a run as they were at one of its checkpoints, or before training."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from selfplay.config.instantiate import build
from selfplay.engines import Engine
from selfplay.errors import ConfigError, RunError
from selfplay.learner import checkpoint
from selfplay.models.policy import Policy, load_policy
from selfplay.models.population import Population
from selfplay.rollout import policies as members
from selfplay.run.directory import Run

START = "start"
"""In place of a step: the policies as they were before training."""


@dataclass(frozen=True, kw_only=True)
class StudyPlayer:
    """Somebody who can take every seat of a game."""

    label: str
    """How figures name it, such as kuhn@600."""
    policies: Mapping[str, str]
    """Role to the name of the policy that plays it."""

    def seats(self, agents: Sequence[str]) -> dict[str, str]:
        """The seating of these agents by this player."""
        return {agent: self.policies[agent.rpartition("_")[0]] for agent in agents}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Which policies are meant: RUN, RUN@STEP or RUN@start."""

    run: Path
    """The run folder."""
    step: int | None = None
    """Its checkpoint; the newest where None."""
    start: bool = False
    """Before training."""

    def __str__(self) -> str:
        """As it is written on the command line."""
        at = START if self.start else self.step
        return str(self.run) if at is None else f"{self.run}@{at}"

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Raises ConfigError for what is neither a step nor `start`."""
        folder, at, step = text.rpartition("@")
        if not at or Path(text).is_dir():
            return cls(run=Path(text))
        if step == START:
            return cls(run=Path(folder), start=True)
        if not step.isdecimal():
            raise ConfigError(
                f"{text}: {step!r} is no step; write RUN, RUN@STEP or RUN@{START} (before training)"
            )
        return cls(run=Path(folder), step=int(step))

    def load(
        self, roles: Sequence[str], *, anyhow: bool = False
    ) -> tuple[StudyPlayer, dict[str, Policy], dict[str, Engine]]:
        """Load a player. Return the player; its policies by name, including saved models; and by
        name the run's other opponents that hold one of these roles.

        With `anyhow` a run's only policy takes roles that the run did not have. Raises ConfigError
        if the run cannot play these roles.
        """
        config = Run.open(self.run).config()
        population: Population = build(config["population"], where="population")
        mine = {role: population.policy_of(role) for role in config["roles"]}
        learned = {name for name in mine.values() if name not in population.opponents}
        if anyhow and len(learned) == 1:
            mine = {**dict.fromkeys(roles, next(iter(learned))), **mine}
        for role in roles:
            if role not in mine:
                raise ConfigError(
                    f"{self.run}: has no role {role!r} ({', '.join(mine)}), so that it cannot play "
                    "this game; name runs of the same game, or for transfer of one shared policy"
                )
        place = None if self.start else places(self.run, step=self.step)[-1]
        label = f"{self.run.resolve().name}@{START if place is None else int(place.name)}"
        found = members.load(
            population,
            config["roles"],
            warmstart=config["warmstart"],
            seed=int(config["seed"]),
            saved=place,
        )
        for name, policy in found.items():
            if place is not None:
                policy.load_weights(place / "policies" / name)
        at = f"{self.run.resolve()}@{label.rpartition('@')[2]}"
        policies = {role: f"{at}:{mine[role]}" for role in roles}
        held = {mine[role] for role in roles} & set(population.opponents)
        saved = population.checkpoints()
        for name in sorted(held & set(saved)):
            found[name] = load_policy(name, **saved[name], learn=False)
        named = {f"{at}:{name}": policy for name, policy in found.items()}
        others = {f"{at}:{name}": population.opponents[name] for name in held - set(saved)}
        return StudyPlayer(label=label, policies=policies), named, others


def untrained(run: Path) -> dict[str, PreTrainedModel]:
    """The models of a run's policies before training, by the names that its records use."""
    config = Run.open(run).config()
    transformers_logging.disable_progress_bar()
    population: Population = build(config["population"], where="population")
    found = members.load(
        population, config["roles"], warmstart=config["warmstart"], seed=int(config["seed"])
    )
    return {name: policy.model for name, policy in found.items()}


def places(folder: Path, *, step: int | None = None, every: bool = False) -> list[Path]:
    """The whole checkpoints of a run: its newest, that of `step`, or every one, oldest first.

    Raises RunError where there is none; a damaged one is left out, and told on stderr.
    """
    Run.open(folder)
    if step is not None and not every:
        return [checkpoint.at(folder / "checkpoints", step)]
    kept = checkpoint.kept(folder / "checkpoints")[::-1]
    faults = {path: checkpoint.broken(path) for path in kept}
    for path, fault in faults.items():
        if fault is not None:
            print(f"checkpoint {path.name}: {fault}; left out", file=sys.stderr)
    whole = [path for path, fault in faults.items() if fault is None]
    if not whole:
        raise RunError(f"run {folder} has no whole checkpoint; go on with it: train resume=...")
    return whole if every else whole[-1:]


def settings_that_differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the groups that decide what an agent sees and in which two configs differ."""
    return [key for key in ("arena", "roles") if one.get(key) != other.get(key)]
