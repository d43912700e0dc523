"""The class or function from which the program makes the value of a node of a config."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from importlib import import_module
from types import UnionType
from typing import Any, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from selfplay.config.instantiate import TARGET, Signature, import_target, signature
from selfplay.errors import ConfigError

CLASSES = {
    "evaluations.*": "selfplay.rollout.evaluation.Evaluation",
    "sampling.*": "selfplay.rollout.sampling_settings.SamplingSettings",
    "rollout": "selfplay.rollout.rollout_settings.RolloutSettings",
    "learner": "selfplay.learner.learner_settings.LearnerSettings",
    "policy": "selfplay.models.policy_settings.PolicySettings",
    "population.overrides.*": "selfplay.models.policy_settings.PolicySettings",
    "population.opponents.*": "selfplay.models.policy_settings.PolicySettings",
    "warmstart.model": "selfplay.models.tiny.build_model",
    "collapse.rules.*": "selfplay.experiment.collapse.monitor.Rule",
}
"""Class or function that the program builds from a node without a `_target_`, by its path."""


def signature_of(config: DictConfig, path: str) -> Signature:
    """Return the parameters of the class of a node; none if there is no such node or class, or if
    the class cannot be imported."""
    with suppress(ConfigError):  # a second fault, which is found when this one is repaired
        kind = _kind(config, path)
        if kind is not None and not get_origin(kind):
            return signature(kind, path)
    return Signature(known=(), needed=(), hints={}, anything=False)


def _kind(config: DictConfig, path: str) -> Any:
    """Return the class, function or mapping type from which the program makes a node's value.

    It is named by the node, by `CLASSES`, or by a type hint of the class of the node above. None if
    there is no such node or type. Raises ConfigError if the name cannot be imported.
    """
    node = OmegaConf.select(config, path, throw_on_resolution_failure=False) if path else None
    if not isinstance(node, DictConfig):
        return None
    if named := OmegaConf.select(node, TARGET):
        return import_target(named, path)
    parent, _, own = path.rpartition(".")
    if known := CLASSES.get(path) or CLASSES.get(f"{parent}.*"):
        module, _, name = known.rpartition(".")  # a limit of trust does not apply to it
        return getattr(import_module(module), name)
    above = _kind(config, parent)
    if above is None:
        return None
    of_mapping = get_origin(above) is Mapping
    hint = get_args(above)[-1] if of_mapping else signature(above, parent).hints.get(own)
    branches = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((b for b in branches if is_dataclass(b) or get_origin(b) is Mapping), None)
