"""Players of a study: the policies of a run at one of its checkpoints, or before training."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfplay.engines import Engine
from selfplay.errors import ConfigError, RunError
from selfplay.models.population import Population
from selfplay.run.config_data import config_data
from selfplay.run.directory import Run
from selfplay.run.run_folder import CHECKPOINTS, CONFIG, POLICIES
from selfplay.types import role_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from selfplay.models.policy import Policy

START = "start"
"""Word in place of a step: the policies before training."""


@dataclass(frozen=True, kw_only=True)
class StudyPlayer:
    """Policies for all roles of a game. `Reference.load` makes it; measures seat it."""

    label: str
    """Name in the results, such as kuhn@600."""
    policies: Mapping[str, str]
    """Role to the name of the policy that plays it."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Role to the settings of what plays it without training: an opponent, or a frozen policy with
    a model of its own. Equal settings of two players mean the same moves."""

    def seats(self, agents: Sequence[str]) -> dict[str, str]:
        """Return the policy of each of these agents."""
        return {agent: self.policies[role_of(agent)] for agent in agents}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Reference to a player on the command line: RUN, RUN@STEP or RUN@start."""

    run: Path
    """Folder of the run."""
    step: int | None = None
    """Step of the checkpoint; None: the newest."""
    start: bool = False
    """True for the policies before training."""

    def __str__(self) -> str:
        """Return the text on the command line."""
        at = START if self.start else self.step
        return str(self.run) if at is None else f"{self.run}@{at}"

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Parse RUN, RUN@STEP or RUN@start. Raises ConfigError for any other text after the @."""
        folder, at, step = text.rpartition("@")
        if not at or Path(text).is_dir():
            return cls(run=Path(text))
        if step == START:
            return cls(run=Path(folder), start=True)
        if not step.isdecimal():
            raise ConfigError(
                f"{text}: {step!r} is not a step; write RUN, RUN@STEP or RUN@{START} (before "
                "training)"
            )
        return cls(run=Path(folder), step=int(step))

    def place(self) -> Path | None:
        """Return the checkpoint; None for the policies before training.

        Raises RunError if the run does not have it.
        """
        return None if self.start else places(self.run, step=self.step)[-1]

    def load(
        self, roles: Sequence[str], *, opened: ExitStack, any_role: bool = False
    ) -> "tuple[StudyPlayer, dict[str, Policy], dict[str, Engine]]":
        """Load a player.

        Args:
            roles: Roles that the player must play.
            opened: Closes the opponents at its end.
            any_role: True: the only policy of a run also takes roles that the run did not have.
        Returns:
            The player; its policies by name, including saved models; and by name the run's other
            opponents that have one of these roles.
        Raises:
            ConfigError: If the run cannot play these roles.
            RunError: If the run does not have the checkpoint.
        """
        from selfplay.models.policy import load_policy  # loads torch
        from selfplay.rollout.policies import load_policies

        config = config_of(self.run)
        population = opened.enter_context(closing(Population.of(config)))
        mine = self._policy_names(population, config["roles"], roles if any_role else ())
        for role in roles:
            if role not in mine:
                raise ConfigError(
                    f"{self.run}: has no role {role!r} ({', '.join(mine)}), so it cannot play this "
                    "game; name runs of the same game, or, for transfer, of one shared policy"
                )
        place = self.place()
        label = f"{self.run.resolve().name}@{START if place is None else int(place.name)}"
        found = load_policies(population, seed=config["seed"], saved=place)
        for name, policy in found.items():
            if place is not None:
                policy.load_weights(place / POLICIES / name)
        at = f"{self.run.resolve()}@{label.rpartition('@')[2]}"
        policies = {role: f"{at}:{mine[role]}" for role in roles}
        fixed = fixed_of(population, config["population"].get("opponents") or {})
        held = {mine[role] for role in roles} & set(population.opponents)
        saved = population.saved_models
        for name in sorted(held & set(saved)):
            found[name] = load_policy(name, **vars(saved[name]))
        named = {f"{at}:{name}": policy for name, policy in found.items()}
        others = {f"{at}:{name}": population.opponents[name] for name in held - set(saved)}
        kept = {role: fixed[mine[role]] for role in roles if mine[role] in fixed}
        return StudyPlayer(label=label, policies=policies, fixed=kept), named, others

    def missing(self, roles: Sequence[str]) -> list[str]:
        """Return the roles that no policy of the run can play.

        A run with a single policy besides its opponents can play any role.
        """
        config = config_of(self.run)
        with closing(Population.of(config)) as population:
            mine = self._policy_names(population, config["roles"], roles)
        return [role for role in roles if role not in mine]

    @staticmethod
    def _policy_names(
        population: Population, own: Iterable[str], more: Iterable[str]
    ) -> dict[str, str]:
        """Return policies by role: those of the run's `own` roles, and of the roles `more` if the
        run has a single policy besides its opponents."""
        mine = {role: population.policy_of(role) for role in own}
        learned = {name for name in mine.values() if name not in population.opponents}
        if len(learned) == 1:
            return {**dict.fromkeys(more, next(iter(learned))), **mine}
        return mine


def fixed_of(population: Population, opponents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the opponents and of the frozen policies that have a model, by name.

    `opponents` are the settings of the opponents in the run's config. The model of a frozen policy
    without settings for it comes from the warm start of the run, which may be another in each run.
    """
    frozen = {
        name: each for name, each in population.policies.items() if each.model and not each.learn
    }
    return {**opponents, **frozen}


def roles_played_alike(players: Sequence[StudyPlayer]) -> list[str]:
    """Return the roles that the same opponent or frozen policy plays for all of the players."""
    first, *others = players
    return [
        role
        for role, settings in first.fixed.items()
        if all(role in each.fixed and each.fixed[role] == settings for each in others)
    ]


def except_fixed_roles(players: Sequence[StudyPlayer]) -> str:
    """Return the end of an error about too few sides: the roles of `roles_played_alike`; "" without
    any."""
    same = ", ".join(roles_played_alike(players))
    return f" besides {same}, which the same opponent plays for all players" if same else ""


def config_of(run: Path) -> dict[str, Any]:
    """Return the config of a run.

    Raises RunError if it lacks a key that studies need, or if a value is of another kind.
    """
    return _checked(Run.open(run).config(), run / CONFIG)


def seed_of(run: Path) -> int:
    """Return the seed of a run; no name in its config is imported.

    Raises RunError for a config that studies cannot use.
    """
    seed: int = _checked(config_data(Run.open(run).folder), run / CONFIG)["seed"]
    return seed


def _checked(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """Return the config of a run; raise RunError if it lacks what studies need."""
    for key in ("population", "roles", "seed", "warmstart"):
        if key not in config:
            raise RunError(f"{place}: has no {key!r}; it is not the config of a run")
    if not isinstance(config["seed"], int):
        raise RunError(
            f"{place}: seed is {config['seed']!r}; write the whole number that the run began with"
        )
    if not isinstance(config["roles"], Mapping):
        raise RunError(f"{place}: roles is {config['roles']!r}; it is not the config of a run")
    return config


def untrained(run: Path) -> "dict[str, PreTrainedModel]":
    """Return the models of a run's policies before training, by their names in its records."""
    from transformers.utils import logging as transformers_logging  # loads torch

    from selfplay.rollout.policies import load_policies

    config = config_of(run)
    transformers_logging.disable_progress_bar()
    with closing(Population.of(config)) as population:
        found = load_policies(population, seed=config["seed"])
    return {name: policy.model for name, policy in found.items()}


def policies_of(run: Path, place: Path, *, untrained: bool = False) -> "dict[str, Policy]":
    """Return a run's own policies at a checkpoint, or before training.

    The bases of adapters come from the checkpoint in both cases.
    """
    from transformers.utils import logging as transformers_logging  # loads torch

    from selfplay.rollout.policies import load_policies

    config = config_of(run)
    transformers_logging.disable_progress_bar()
    with closing(Population.of(config)) as population:
        found = load_policies(population, seed=config["seed"], saved=place, afresh=untrained)
    for name, policy in found.items():
        if not untrained:
            policy.load_weights(place / POLICIES / name)
    return found


def places(folder: Path, *, step: int | None = None, every: bool = False) -> list[Path]:
    """Return checkpoints of a run: the one of `step` (None: the newest), or all, the oldest first.

    If `every` is True, a damaged checkpoint is left out, with a line on stderr. Raises RunError if
    there is no whole checkpoint.
    """
    from selfplay.learner import checkpoint  # loads torch

    Run.open(folder)
    if not every:
        return [checkpoint.choose(folder, step=step)]
    kept = checkpoint.kept(folder / CHECKPOINTS)[::-1]
    faults = {path: checkpoint.broken(path) for path in kept}
    for path, fault in faults.items():
        if fault is not None:
            checkpoint.report_faults([f"{path.name}: {fault}"], None)
    whole = [path for path, fault in faults.items() if fault is None]
    if not whole:
        raise RunError(f"run {folder} has no whole checkpoint; continue it: train resume=...")
    return whole


def settings_that_differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the config groups that decide what an agent sees and that differ in two configs."""
    return [key for key in ("arena", "roles") if one.get(key) != other.get(key)]
