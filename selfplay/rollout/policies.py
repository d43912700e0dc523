"""Loads the policies of a population, and makes a learner for each policy that learns."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from selfplay.config.instantiate import call, check_arguments, join
from selfplay.errors import ConfigError
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Objective
from selfplay.models.lora import BASES, Lora
from selfplay.models.policy import Bases, Policy, load_policy
from selfplay.models.population import Population
from selfplay.models.warmstart import resolve_model, tunes
from selfplay.rng import derive

# Arguments that the program provides, so that a config must not set them.
LEARNER = ("model", "objective", "reference", "seed", "device")
POLICY = ("name", "bases", "seed")


def load_policies(
    population: Population,
    roles: Iterable[str],
    *,
    warmstart: Mapping[str, Any],
    seed: int,
    saved: Path | None = None,
    afresh: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    only: Collection[str] | None = None,
) -> dict[str, Policy]:
    """Return the policies by name; policies with adapters over the same model share it.

    Args:
        population: Maps roles to policies.
        roles: Names of the roles.
        warmstart: Config of the warm start, which makes the models of policies without a model, or
            fine-tunes those of policies that learn.
        seed: Seed of new adapters.
        saved: Checkpoint to load the models from.
        afresh: Load the initial model of a policy without an adapter even if `saved` is given. A
            fixed reference needs it, and a checkpoint does not store it.
        device: Device of the policies, in place of the configured one.
        dtype: Type of the weights of models that are configured in float32.
        only: Names of the policies to load; None: all.
    """
    policies: dict[str, Policy] = {}
    bases: Bases = {}
    for name, node in population.policies(roles).items():
        if only is not None and name not in only:
            continue
        where = f"policy {name!r}"
        lora = lora_of(node, where=where)
        # A base made by this run's warm start exists nowhere else, so the checkpoint stores it.
        kept = None if lora is None else kept_base(node, warmstart)
        folder = None
        if saved and kept:
            folder = saved / BASES / kept
        elif saved and lora is None and not afresh:
            folder = saved / "policies" / name
        model = str(folder or "") or resolve_model(
            node.get("model"), warmstart, where=where, learn=bool(node.get("learn", True))
        )
        policies[name] = load_policy(
            name,
            **{**placed_at(node, device=device, dtype=dtype), "model": model, "lora": lora},
            bases=bases,
            seed=derive(seed, "adapter", name),
        )
        base = policies[name].base
        if base is not None:
            base.kept = base.kept or kept
    return policies


def placed_at(node: Mapping[str, Any], *, device: str | None, dtype: str | None) -> dict[str, Any]:
    """Return a policy's settings with another device, and a type in place of float32, if given."""
    made = dict(node)
    if device:
        made["device"] = device
    if dtype and node.get("dtype", "float32") == "float32":
        made["dtype"] = dtype
    return made


def kept_base(node: Mapping[str, Any], warmstart: Mapping[str, Any]) -> str | None:
    """Return the name in a checkpoint of an adapter's base that a warm start made, else None."""
    dtype, model = str(node.get("dtype", "float32")), node.get("model")
    if not model:
        return dtype
    if not (node.get("learn", True) and tunes(warmstart)):
        return None
    return f"{dtype}-{derive('base', model):016x}"


def make_learners(
    population: Population,
    policies: Mapping[str, Policy],
    *,
    settings: Mapping[str, Any],
    objective: Objective,
    seed: int,
    device: str | None = None,
) -> dict[str, Learner]:
    """Return a learner for every policy that learns, with the run's settings or its own.

    `device` is the kind of device on which they will compute; None: that of the policies.
    """
    learners = {}
    for name, policy in policies.items():
        if not policy.learn:
            continue
        if objective.reads_reference:
            policy.freeze_reference(moves=objective.reference == "ema")
        provided = {
            "objective": objective,
            "reference": policy.reference,
            "seed": seed,
            "device": device,
        }
        own = {**settings, **population.learner_of(name)}
        checked = check_arguments(Learner, own, where="learner", reserved=LEARNER)
        learners[name] = call(
            Learner, {"model": policy.model, **provided, **checked}, where="learner"
        )
    return learners


def lora_of(node: Mapping[str, Any], *, where: str) -> Lora | None:
    """Return the adapter that the settings of a policy ask for, if any."""
    settings = node.get("lora")
    if settings is None:
        return None
    at = join(where, "lora")
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{at}: {settings!r} does not fit: it holds settings, e.g. {{rank: 16}}")
    made: Lora = call(Lora, check_arguments(Lora, settings, where=at), where=at)
    return made
