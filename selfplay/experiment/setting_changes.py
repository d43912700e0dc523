"""The settings that a resumed run may change, and the changes themselves."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from selfplay.config.plain_data import LOCAL_DEFAULTS
from selfplay.config.schedule import is_schedule
from selfplay.errors import ConfigError

CHANGEABLE = (
    "run.steps",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.async_checkpoints",
    "run.episodes_every",
    "run.threads",
    "run.deterministic",
    "run.max_failed_fraction",
    "run.minimum.*",
    "learner.*",
    "population.overrides.*.learner.*",
    "population.policy.teacher*",
    "services.reward_model.model",
    "services.reward_model.device",
    "services.reward_model.batch",
    "population.overrides.*.teacher*",
    "objective.kl",
    "objective.entropy",
    "objective.low",
    "objective.high",
    "objective.dual",
    "objective.ema_rate",
    "objective.weight_low",
    "objective.weight_high",
    "objective.beta",
    "objective.smoothing",
    "sampler.group_size",
    "curriculum.batch",
    "curriculum.proposals",
    "curriculum.solver_batch",
    "evaluations.*.every",
)
"""Patterns of the keys that may change. No checkpoint has state that depends on their values."""
WHY_NOT = {
    "run": "it is part of the run's name or place",
    "seed": "all tasks and samples so far were drawn with it",
    "policy": "the weights and optimizers in the checkpoint belong to the old value",
    "population": "the weights and optimizers in the checkpoint belong to the old value",
    "warmstart": "the policies have been trained since their warm start",
    "curriculum": "the curriculum's state in the checkpoint belongs to the old value",
    "league": "the snapshots and results in the checkpoint belong to the old value",
    "credit": (
        "the credit method may keep state in the checkpoint (running averages, a critic) that its "
        "new settings cannot use"
    ),
    "collapse": "the state of the rules in the checkpoint belongs to the old value",
    "trackers": "a tracker records a run from its beginning",
    "evaluations": "results before and after the change could not be compared",
}
"""Reason why other keys are fixed, by the first part of their names."""
OTHERWISE = "metrics before and after the change could not be compared"
"""Reason for keys whose first part is not in `WHY_NOT`."""


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A setting with another value than before. `changes` finds it; `sessions.json` records it."""

    key: str
    """Dotted key in the config."""
    before: Any
    """Value so far, as plain data; None if there was none."""
    after: Any
    """New value; None if there is none."""

    def __str__(self) -> str:
        """Return the new value and, in brackets, the one before."""
        return f"{self.override} (was {_written(self.before)})"

    @property
    def override(self) -> str:
        """The new value as an override of a command line, without quotes for a shell."""
        return f"{self.key}={_written(self.after)}"

    @property
    def allowed(self) -> bool:
        """True if a resumed run may change this setting."""
        return any(fnmatchcase(self.key, pattern) for pattern in CHANGEABLE)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[SettingChange]:
    """Return the settings that differ in two configs, without those of engine and runtime."""
    old, new = (dict(_leaves(config)) for config in (before, after))
    return [
        SettingChange(key=key, before=old.get(key), after=new.get(key))
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
        and key.partition(".")[0] not in LOCAL_DEFAULTS
        # Where a mapping takes the place of a value, its keys are the change.
        and (key in new or not any(each.startswith(f"{key}.") for each in new))
    ]


def check_changes(
    changed: Sequence[SettingChange],
    config: Mapping[str, Any],
    *,
    run: Path,
    step: int | None,
    overrides: Sequence[str] = (),
) -> None:
    """Raise ConfigError for the first change that the run cannot make.

    Args:
        changed: The changes.
        config: The config with these changes.
        run: The run folder.
        step: Step of the checkpoint from which the run goes on; None: it begins again.
        overrides: Arguments of the user that made the changes, for the error.
    """

    def anew(override: str) -> str:
        """Return the advice to begin a new run with the user's words, or with this override."""
        words = ["selfplay", "train", "--config-path", str(run), "run.name=NEW"]
        return f"begin a new run: {shlex.join([*words, *(overrides or [override])])}"

    for change in changed:
        if not change.allowed:
            why = WHY_NOT.get(change.key.partition(".")[0], OTHERWISE)
            chosen = any(change.key.startswith(word.partition("=")[0]) for word in overrides)
            is_class = change.key.rpartition(".")[2] == "_target_"
            if is_class and change.before and change.after and not chosen:
                old, new = (str(name).rpartition(".")[2] for name in (change.before, change.after))
                why += f" (if its class was only renamed, keep the old name in its module: {old} = "
                why += f"{new})"
            raise ConfigError(
                f"{change.key}: cannot change in a resumed run, because {why}; drop it, or "
                f'{anew(f"{change.key}=...")} ("Resume with other settings" in '
                "docs/quickstart.md lists the keys that can change)"
            )
    if step is None:
        return
    named = {change.key: change for change in changed}
    steps = config["run"].get("steps")  # one that is no number is refused with the other settings
    if "run.steps" in named and isinstance(steps, int) and steps <= step:
        raise ConfigError(
            f"run.steps: {steps} does not fit: {run} goes on from step {step}; set more"
        )
    weight = named.get("objective.kl")
    if weight and not _any_weight(weight.before) and config["objective"].get("reference") == "ema":
        raise ConfigError(
            f"objective.kl: {_written(weight.after)} does not fit: the checkpoint has no moving "
            f"average of the weights, because objective.kl was 0; {anew(weight.override)}"
        )


def _any_weight(node: Any) -> bool:
    """Return True if a number, or a schedule of one, is not 0 at some step."""
    return any(node["values"]) if is_schedule(node) else bool(node)


def _written(value: Any) -> str:
    """Return a value as a command line has it."""
    if not is_schedule(value):
        return str(value)
    return "{" + ", ".join(f"{name}: {each}" for name, each in value.items()) + "}"


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each setting; a list or a schedule is a value, and {}
    is none."""
    if not isinstance(node, Mapping) or is_schedule(node):
        yield key, node
        return
    for name, value in node.items():
        yield from _leaves(value, f"{key}.{name}" if key else str(name))
