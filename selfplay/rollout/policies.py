"""Load the policies of a population, and make a learner for each policy that learns."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import Objective
from selfplay.learner.precision import in_bfloat16
from selfplay.learner.references import GivenReferences, reads_teacher
from selfplay.models.lora import BASES
from selfplay.models.policy import Bases, Policy, load_policy
from selfplay.models.policy_settings import PolicySettings, chat_key
from selfplay.models.population import Population
from selfplay.models.teacher import Teachers, load_teachers
from selfplay.models.warmstart_settings import WarmStartSettings
from selfplay.rng import derive
from selfplay.run.run_folder import POLICIES


def load_policies(
    population: Population,
    *,
    seed: int,
    saved: Path | None = None,
    afresh: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    only: Collection[str] | None = None,
    sent: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> dict[str, Policy]:
    """Return the policies by name. Policies with adapters over the same model share it if they
    have the same chat template.

    Args:
        population: The settings of the policies, and the warm start that makes the models of
            those without a model, or fine-tunes those that learn.
        seed: Seed of new adapters.
        saved: Checkpoint to load the models from. The weights of adapters are not loaded: the
            caller does it with `Policy.load_weights` or `checkpoint.load`.
        afresh: Load the initial model of a policy without an adapter even if `saved` is given. A
            fixed reference needs it, and a checkpoint does not store it.
        device: Device of the policies, in place of the configured one.
        dtype: Type of the weights of models that are configured in float32.
        only: Names of the policies to load; None: all.
        sent: Weights by policy, which policies without an adapter take in place of those in files.
    """
    policies: dict[str, Policy] = {}
    bases: Bases = {}
    for name, settings in population.policies.items():
        if only is not None and name not in only:
            continue
        # A base made by this run's warm start exists nowhere else, so the checkpoint stores it.
        kept = None if settings.lora is None else kept_base(settings, population.warmstart)
        folder = None
        if saved and kept:
            folder = saved / BASES / kept
        elif saved and settings.lora is None and not afresh:
            folder = saved / POLICIES / name
        model = str(folder or "") or population.warmstart.resolve(
            settings.model,
            where=f"policy {name!r}",
            learn=settings.learn,
            **settings.chat,
        )
        placed = replace(settings.placed_at(device=device, dtype=dtype), model=model)
        policies[name] = load_policy(
            name,
            bases=bases,
            seed=derive(seed, "adapter", name),
            sent=None if settings.lora else (sent or {}).get(name),
            **vars(placed),
        )
        base = policies[name].base
        if base is not None:
            base.kept = base.kept or kept
    return policies


def kept_base(settings: PolicySettings, warmstart: WarmStartSettings) -> str | None:
    """Return the name under which a checkpoint stores the base model of an adapter.

    None if no warm start made this base: a checkpoint does not store it then.
    """
    if not settings.model:
        return settings.dtype
    if not (settings.learn and warmstart.tunes):
        return None
    key = chat_key(settings.chat)
    return f"{settings.dtype}-{derive('base', settings.model, *key):016x}"


def make_learners(
    policies: Mapping[str, Policy],
    *,
    settings: Mapping[str, LearnerSettings],
    objective: Objective,
    seed: int,
    device: str | None = None,
) -> dict[str, Learner]:
    """Return a learner for every policy that learns.

    Args:
        policies: The policies by name.
        settings: Settings of the learners by policy.
        objective: Objective, whose loss is minimised.
        seed: Seed of the split into mini-batches.
        device: Kind of device on which the learners will compute; None: that of the policies.
    """
    learners = {}
    teachers: Teachers = {}
    for name, policy in policies.items():
        if not policy.learn:
            continue
        reference: GivenReferences = None
        if reads_teacher(objective):
            short = in_bfloat16(settings[name].precision, device or policy.model.device.type)
            dtype = "bfloat16" if short else "float32"
            reference = load_teachers(policy, dtype=dtype, known=teachers)
        elif objective.reads_reference:
            policy.freeze_reference(moves=objective.reference == "ema")
            reference = policy.reference
        learners[name] = Learner(
            policy.model,
            objective=objective,
            reference=reference,
            seed=seed,
            device=device,
            settings=settings[name],
        )
    return learners
