"""The members of a population: its policies loaded, and a learner for each that learns."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.config.instantiate import TARGET, call, check_arguments, import_target, join
from selfplay.engines import ServingEngine
from selfplay.errors import ConfigError
from selfplay.learner.learner import Learner, check_learner_settings
from selfplay.learner.objective import Objective
from selfplay.models.lora import BASES, Lora, require_peft
from selfplay.models.policy import Bases, Policy, device_of, load_policy, outline, positions
from selfplay.models.population import Population
from selfplay.models.tiny import build_model
from selfplay.models.tree_attention import kernel_device_problem
from selfplay.models.warmstart import WarmStart, resolve_model
from selfplay.rng import derive
from selfplay.rollout.policy_pool import PolicyPool

# What the program fills in, and a config therefore may not.
LEARNER = ("model", "objective", "reference", "seed")
POLICY = ("name", "bases", "seed")


def validate(
    population: Population,
    roles: Iterable[str],
    *,
    learner: Mapping[str, Any],
    warmstart: Mapping[str, Any],
    here: bool = False,
) -> None:
    """Raise ConfigError for the first policy or learner that could not be; loads no weights.

    `here`: whether policies learn in this process, on the devices that they name.
    """
    check_learner_settings(
        check_arguments(Learner, learner, where="learner", reserved=LEARNER), where="learner"
    )
    policies = population.policies(roles)
    for name, node in population.checkpoints().items():
        check_arguments(load_policy, node, where=f"population.opponents.{name}", reserved=POLICY)
        _refuse_model(node, where=f"population.opponents.{name}")
    for name, node in policies.items():
        place = f"population.overrides.{name}"
        where = place if name in population.overrides else "policy"
        check_arguments(load_policy, node, where=where, pending=("model", "lora"), reserved=POLICY)
        _refuse_model(node, where=where)
        own = population.learner_of(name)
        both = check_arguments(
            Learner, {**learner, **own}, where=f"{place}.learner", reserved=LEARNER
        )
        check_learner_settings({key: both[key] for key in own}, where=f"{place}.learner")
        kernel = {**learner, **own}.get("attention")
        if here and kernel and node.get("learn", True):
            device = device_of(str(node.get("device", "auto")), where)
            if reason := kernel_device_problem(kernel, device):
                at = f"{place}.learner" if "attention" in own else "learner"
                raise ConfigError(f"{at}.attention: {reason}")
        lora = _lora(node, where=where)
        if lora is not None:
            require_peft(f"{where}.lora")
            base = _outline(node.get("model"), warmstart, where=f"{where}.lora")
            if base is not None:
                lora.layers(base, where=f"{where}.lora")


def check_context_length(
    population: Population,
    answers: Mapping[str, tuple[str, int]],
    *,
    warmstart: Mapping[str, Any],
    longest: int | None = None,
) -> None:
    """Raise ConfigError where an answer may be as long as all that its policy reads, so that no
    prompt has room before it. Loads no weights.

    Args:
        population: Who answers.
        answers: Of each role, where the config limits its answers and to how many tokens.
        warmstart: Config of the model of those that name none.
        longest: Tokens that the engine bounds a prompt and its answer to, if it does.
    """
    served = {**population.policies(answers), **population.checkpoints()}
    for role, (where, tokens) in answers.items():
        name = population.policy_of(role)
        if name not in served:  # what answers counts no tokens
            continue
        if longest is not None and tokens >= longest:
            raise ConfigError(
                f"{where}: {tokens} leaves no room for a prompt in engine.max_length={longest}; "
                "lower the one, or raise the other"
            )
        limit = _reads(served[name], warmstart)
        if limit is not None and tokens >= limit:
            raise ConfigError(
                f"{where}: {tokens} leaves no room for a prompt in the {limit} that the model of "
                f"policy {name!r} reads; lower it"
            )


def load(
    population: Population,
    roles: Iterable[str],
    *,
    warmstart: Mapping[str, Any],
    seed: int,
    saved: Path | None = None,
    afresh: bool = False,
    device: str | None = None,
) -> dict[str, Policy]:
    """The policies by name; those with adapters over one model share it.

    Args:
        population: Which there are.
        roles: Who plays.
        warmstart: Config of the model of those that name none.
        seed: Of new adapters.
        saved: A checkpoint to take models from.
        afresh: Whether to load what the policies began as even so: a checkpoint no longer has that
            of a policy without an adapter, and a reference needs it.
        device: Where they are, if not where their settings say.
    """
    found: dict[str, Policy] = {}
    bases: Bases = {}
    for name, node in population.policies(roles).items():
        where = f"policy {name!r}"
        lora = _lora(node, where=where)
        # Nobody but this run has a base that it made itself: a checkpoint keeps it.
        ours = lora is not None and not node.get("model")
        kept = str(node.get("dtype", "float32")) if ours else None
        folder = None
        if saved and kept:
            folder = saved / BASES / kept
        elif saved and lora is None and not afresh:
            folder = saved / "policies" / name
        model = str(folder or resolve_model(node.get("model"), warmstart, where=where))
        found[name] = load_policy(
            name,
            **{**node, "model": model, "lora": lora, **({"device": device} if device else {})},
            bases=bases,
            seed=derive(seed, "adapter", name),
        )
        base = found[name].base
        if base is not None:
            base.kept = base.kept or kept
    return found


def seat(
    population: Population,
    policies: Mapping[str, Policy],
    policy_pool: PolicyPool,
    engine: ServingEngine,
) -> None:
    """Make the policies and the population's opponents known to rollouts.

    Opponents that are saved models are loaded here; they do not learn, and no checkpoint keeps
    them.
    """
    for name, policy in policies.items():
        policy_pool.add(name, engine, policy.renderer, learn=policy.learn)
    saved = population.checkpoints()
    for name, opponent in population.opponents.items():
        if name not in saved:
            policy_pool.add(name, opponent)
            continue
        loaded = load_policy(name, **saved[name], learn=False)
        engine.serve(name, loaded.model, loaded.renderer.end_ids)
        policy_pool.add(name, engine, loaded.renderer)


def learners(
    population: Population,
    policies: Mapping[str, Policy],
    *,
    settings: Mapping[str, Any],
    objective: Objective,
    seed: int,
) -> dict[str, Learner]:
    """A learner for every policy that learns, with the run's settings or its own."""
    found = {}
    for name, policy in policies.items():
        if not policy.learn:
            continue
        if objective.reads_reference:
            policy.freeze_reference(moves=objective.reference == "ema")
        given = {"objective": objective, "reference": policy.reference, "seed": seed}
        own = {**settings, **population.learner_of(name)}
        fitted = check_arguments(Learner, own, where="learner", reserved=LEARNER)
        found[name] = call(Learner, {"model": policy.model, **given, **fitted}, where="learner")
    return found


def _refuse_model(node: Mapping[str, Any], *, where: str) -> None:
    """Raise ConfigError if a model is neither a name nor a folder."""
    model = node.get("model")
    if model is not None and not isinstance(model, str):
        raise ConfigError(f"{where}.model: {model!r} does not fit: a name or a folder is needed")


def _lora(node: Mapping[str, Any], *, where: str) -> Lora | None:
    """The adapter that a policy's settings ask for."""
    settings = node.get("lora")
    if settings is None:
        return None
    at = join(where, "lora")
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{at}: {settings!r} does not fit: it holds settings, e.g. {{rank: 16}}")
    made: Lora = call(Lora, check_arguments(Lora, settings, where=at), where=at)
    return made


def _reads(node: Mapping[str, Any], warmstart: Mapping[str, Any]) -> int | None:
    """Most tokens that a policy's model will read; None if there is no limit, or none is known."""
    if node.get("model"):
        return positions(str(node["model"]))
    if TARGET not in warmstart:
        return None
    made = _outline(None, warmstart, where="warmstart")  # refuses sizes that no model has
    if made is None or "positions" not in (warmstart.get("model") or {}):
        return None  # a warm start chooses the size of its model from its demonstrations
    return int(made.config.max_position_embeddings)


def _outline(
    model: str | None, warmstart: Mapping[str, Any], *, where: str
) -> PreTrainedModel | None:
    """The modules that an adapter's base will have, without any weights; None if unknown."""
    if model:
        return outline(model)
    if TARGET not in warmstart:
        raise ConfigError(
            f"{where}: an adapter needs a base; set policy.model, or choose a warmstart config"
        )
    if import_target(warmstart[TARGET], "warmstart") is not WarmStart:
        return None
    sizes = warmstart.get("model") or {}
    fitted = check_arguments(
        build_model, sizes, where="warmstart.model", reserved=("vocabulary", "seed")
    )
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        made: PreTrainedModel = call(
            build_model, {"vocabulary": 8, "seed": 0, **fitted}, where="warmstart.model"
        )
    return made
