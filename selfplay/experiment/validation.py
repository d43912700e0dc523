"""Validation of the objects of a run against each other, before a model is loaded.

Before this, `selfplay.config.plain_data.check_config` has checked the config, and each object has
checked its own settings. The remaining faults are objects that do not fit each other. `validate`
calls the checks in the order in which this module defines them.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import torch

from selfplay.config.run_config import RunSettings
from selfplay.credit import Credit
from selfplay.credit.by_role import ByRole
from selfplay.credit.majority_pairs import MajorityPairs
from selfplay.credit.nested_methods import method_of, methods_of
from selfplay.credit.preference_pairs import PreferencePairs
from selfplay.credit.shaping import CosineLength, Overlong
from selfplay.curriculum import Curriculum
from selfplay.errors import ConfigError, nearest
from selfplay.experiment.collapse import CollapseMonitor
from selfplay.experiment.opponent_notes import missing_opponents, unused_opponents
from selfplay.league.config import LeagueConfig
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.learner.references import reads_teacher
from selfplay.models.bfloat16 import slow_bfloat16
from selfplay.models.lora import require_peft
from selfplay.models.policy import check_folder
from selfplay.models.population import Population
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime import Runtime
from selfplay.runtime.local import Local
from selfplay.sampler import Sampler
from selfplay.sampler.prefetch import overlap_problem
from selfplay.types import role_of


def validate(
    players: RolloutSetup,
    *,
    settings: RunSettings,
    runtime: Runtime,
    objective: Objective,
    shaping: Mapping[str, Any],
    credit: Credit,
    curriculum: Curriculum,
    sampler: Sampler,
    collapse: CollapseMonitor,
    league: LeagueConfig | None,
) -> list[str]:
    """Check the objects of a run against each other. No model is loaded, and no process is started.

    `Experiment` calls it once, after it has built these objects.

    Returns:
        A line for each valid setting that does not do what its value suggests.
    Raises:
        ConfigError: For the first setting that cannot be used, in one line.
    """
    check_unplayed_roles(players)
    check_sampler_supports_credit(credit, sampler)
    check_roles(credit, shaping, players.roles)
    check_collapse(collapse, league, players.population)
    runtime.check(players)
    check_staleness(objective, runtime.max_staleness)
    check_temperatures(players, settings.steps)
    players.check_context_length()
    check_extra_policies(players.population, league)
    check_teachers(players.population, objective)
    check_roles_taught(players, objective)
    for name, each in players.population.policies.items():
        if each.lora is not None:
            require_peft(f"{players.population.where(name)}.lora")
    notes = [each.warmup_note(settings.steps) for each in players.learner_settings.values()]
    notes += missing_opponents(players.population)
    notes += unused_opponents(players, league)
    notes += lone_role_notes(players, credit, sampler)
    notes += sampler_notes(credit, sampler)
    notes += shaping_notes(credit, shaping)
    notes += pair_notes(credit, objective)
    notes += teacher_notes(players.population, objective)
    notes += limit_notes(players, shaping)
    notes += precision_notes(players, runtime)
    if runtime.max_staleness and (reason := overlap_problem(curriculum, sampler)):
        notes.append(
            f"runtime.max_staleness: a step is sampled after the games of the step before, because "
            f"{reason}"
        )
    return [*filter(None, dict.fromkeys(notes)), *truncation_notes(players, objective)]


def check_unplayed_roles(players: RolloutSetup) -> None:
    """Raise ConfigError for a role that no arena of training or of an evaluation plays."""
    for name in players.roles:
        if name not in players.playable:
            raise ConfigError(
                f"roles.{name}: no agent of {players.arena().name} or of an evaluation has this "
                f"role; {nearest(name, players.playable)}; remove it with ~roles.{name}, or, if a "
                "setting of the arena adds such agents, name it in Arena.optional_roles"
            )


def check_sampler_supports_credit(credit: Credit, sampler: Sampler) -> None:
    """Raise ConfigError, with the reason, if no sample could ever get an advantage.

    A credit method states what it needs in `tree` and `min_group_size` (see
    `selfplay.credit.base`); a sampler states what it provides in `tree` and `group_size`. An
    object without these attributes needs nothing. `ByRole` needs what each of its methods needs.
    """
    for where, method in methods_of(credit, "credit").items():
        name = type(method).__name__
        if getattr(method, "tree", False) and not getattr(sampler, "tree", False):
            raise ConfigError(
                f"{where}: {name} credits branches, but {type(sampler).__name__} plays independent "
                "episodes; choose sampler=tree or sampler=branch, or another credit"
            )
        size, least = getattr(sampler, "group_size", None), getattr(method, "min_group_size", 1)
        if size is not None and size < least:
            by_agent = getattr(method, "group_by", None) == "agent"
            others = f" (or {where}.group_by to role or prompt)" if by_agent else ""
            itself = f"{name} compares an agent with itself in at least {least} sibling episodes"
            raise ConfigError(
                f"{where}: {getattr(method, 'signal_needs', '') or itself}, but sampler.group_size "
                f"is {size}, so that every advantage would be zero; set sampler.group_size to "
                f"{least} or more{others}"
            )


def lone_role_notes(players: RolloutSetup, credit: Credit, sampler: Sampler) -> list[str]:
    """Return a line for each learning role whose only agent is compared with no other.

    A method with `group_by=role` or `prompt` compares the agents of a role in one group. With one
    episode per group and one agent of the role, every advantage of the role is 0.
    """
    if getattr(sampler, "group_size", None) != 1:
        return []
    counts = Counter(role_of(agent) for agent in players.arena().possible_agents)
    population, notes = players.population, []
    for role in players.roles:
        method = method_of(credit, role)
        by = getattr(method, "group_by", "agent")
        if by == "agent" or getattr(method, "compares", None) != "group" or counts[role] != 1:
            continue
        if population.policy_of(role) in population.learning:
            notes.append(
                f"credit: {type(method).__name__} with group_by={by} compares the agents of a role "
                f"in one group; a group has one agent of the role {role!r}, because "
                "sampler.group_size is 1, so every advantage of the role is 0; set "
                "sampler.group_size to 2 or more, or credit the role by another method "
                "(credit=by_role)"
            )
    return notes


def sampler_notes(credit: Credit, sampler: Sampler) -> list[str]:
    """Return a line for each credit method that loses or misjudges turns of this sampler.

    A method states `compares`; one that does not gets no line.
    """
    how, notes = type(sampler).__name__, []
    for where, method in methods_of(credit, "credit").items():
        name, compares = type(method).__name__, getattr(method, "compares", None)
        if getattr(sampler, "tree", False) and compares in ("group", "batch"):
            notes.append(
                f"{where}: {name} takes all episodes for independent ones, and {how} makes "
                "episodes that share their first turns: these count several times, and the "
                "gradient is biased; credit=agent_turn, arpo, magrpo and preference know branches"
            )
        if getattr(sampler, "drops_groups", False) and compares == "batch":
            notes.append(
                f"{where}: {name} can learn from groups in which all returns are equal, and {how} "
                "drops these groups; sampler=independent keeps them"
            )
    return notes


def shaping_notes(credit: Credit, shaping: Mapping[str, Any]) -> list[str]:
    """Return a line for each credit method that judges by replays, which shaping does not change.

    A method states this as `replays`.
    """
    if not shaping:
        return []
    return [
        f"shaping: {type(method).__name__} ({where}) judges actions by the arena's own rewards in "
        f"replays, so that {', '.join(shaping)} changes no advantage of it"
        for where, method in methods_of(credit, "credit").items()
        if getattr(method, "replays", False)
    ]


def pair_notes(credit: Credit, objective: Objective) -> list[str]:
    """Return a line for each credit method with pairs that the objective does not compare."""
    if not isinstance(objective, PolicyLoss):
        return []
    return [
        f"{where}: {type(method).__name__} makes pairs of a better and a worse sample, and this "
        "objective does not compare them; choose objective=dpo"
        for where, method in methods_of(credit, "credit").items()
        if isinstance(method, PreferencePairs | MajorityPairs)
    ]


def limit_notes(players: RolloutSetup, shaping: Mapping[str, Any]) -> list[str]:
    """Return a line for each length reward whose limit differs from a learning role's
    `max_tokens`."""
    population, notes = players.population, []
    for name, each in shaping.items():
        if not isinstance(each, Overlong | CosineLength):
            continue
        others = [
            f"{role} {players.sampling[role].max_tokens}"
            for role in players.roles
            if population.policy_of(role) in population.learning
            and players.sampling[role].max_tokens != each.limit
        ]
        if others:
            notes.append(
                f"shaping.{name}.limit: {each.limit} tokens for all roles, but sampling has other "
                f"limits: {', '.join(others)}; set the same max_tokens for all roles, or leave it "
                "out"
            )
    return notes


def precision_notes(players: RolloutSetup, runtime: Runtime) -> list[str]:
    """Return a line for each policy whose passes in bfloat16 are slow on this machine's CPU.

    Its samples are slow if its weights are in bfloat16, and its updates are slow for either.
    """
    if not isinstance(runtime, Local) or not slow_bfloat16():
        return []
    population = players.population
    here = ("cpu",) if torch.cuda.is_available() else ("cpu", "auto")
    notes = []
    for name, policy in population.policies.items():
        where, own = population.where(name), population.overrides.get(name, {})
        keys = []
        if policy.dtype == "bfloat16":
            keys.append(f"{where}.dtype" if "dtype" in own else "policy.dtype")
        if name in population.learning and players.learner_settings[name].precision == "bfloat16":
            mine = "precision" in population.learner_of(name)
            keys.append(f"{where}.learner.precision" if mine else "learner.precision")
        if keys and policy.device in here:
            notes.append(
                f"{where}: {' and '.join(f'{key}=bfloat16' for key in keys)}, and this CPU has no "
                "instructions for it, so that a pass takes several times as long as in float32; "
                f"set {' '.join(f'{key}=float32' for key in keys)}"
            )
    return notes


def check_roles(credit: Credit, shaping: Mapping[str, Any], roles: Collection[str]) -> None:
    """Raise ConfigError for an unknown role, and for a role without a credit method."""
    if isinstance(credit, ByRole):
        for name in credit.methods:
            if name not in roles and name != "default":
                raise ConfigError(f"credit.methods: no role {name!r}; {nearest(name, roles)}")
        for role in roles:
            if role not in credit.methods and "default" not in credit.methods:
                raise ConfigError(f"credit.methods: none for {role!r}; add one, or a default")
    for name, each in shaping.items():
        shaped = getattr(each, "role", None)
        if shaped is not None and shaped not in roles:
            raise ConfigError(f"shaping.{name}.role: no role {shaped!r}; {nearest(shaped, roles)}")


def check_collapse(
    collapse: CollapseMonitor, league: LeagueConfig | None, population: Population
) -> None:
    """Raise ConfigError for a response to a collapse that needs a missing league."""
    if not collapse.response.needs_league:
        return
    name = type(collapse.response).__name__
    if league is None:
        raise ConfigError(f"collapse.response: {name} needs a league; choose league=anchors")
    if not league.anchor_names or not population.opponents:
        raise ConfigError(
            f"collapse.response: {name} needs anchors in the league; name some in "
            "population.opponents, and leave league.anchors null"
        )


def check_staleness(objective: Objective, max_staleness: int) -> None:
    """Raise ConfigError if the objective cannot use samples of earlier weights."""
    if max_staleness and not objective.off_policy:
        raise ConfigError(
            "objective: it needs samples of the present weights, and "
            f"runtime.max_staleness={max_staleness} makes them older; "
            "set objective.correction=truncated (or masked)"
        )


def check_temperatures(players: RolloutSetup, steps: int) -> None:
    """Raise ConfigError for a policy that learns and samples at temperature 0 in some step."""
    for role in players.roles:
        if players.population.policy_of(role) not in players.population.learning:
            continue
        sampling = players.sampling[role]
        last = steps if "temperature" in sampling.schedules else min(steps, 1)
        for step in range(1, last + 1):
            if sampling.at(step).temperature <= 0:
                raise ConfigError(
                    f"sampling: role {role!r} samples at temperature 0 in step {step}, and its "
                    "policy learns; at 0 it never explores: set a temperature above 0"
                )


def check_extra_policies(population: Population, league: LeagueConfig | None) -> None:
    """Raise ConfigError for a policy that never plays."""
    for name in population.extra_policies:
        playing = [role for role in population.roles if population.policy_of(role) == name]
        if playing:
            raise ConfigError(
                f"population.extra_policies: {name!r} is no extra policy, because it plays the "
                f"role {playing[0]} (population.roles); leave it out of extra_policies"
            )
        if league is None or name not in league.players:
            raise ConfigError(
                f"population.extra_policies: {name!r} has no role, and no league.players names "
                "it, so that it would never play"
            )


def check_teachers(population: Population, objective: Objective) -> None:
    """Raise ConfigError unless the policies that learn have the teachers that the objective reads,
    and no others."""
    wanted = reads_teacher(objective)
    if getattr(objective, "advantage", "credit") == "none" and not wanted:
        raise ConfigError(
            "objective.kl: 0 at all steps, and advantage=none learns from the KL alone"
        )
    for name in population.learning:
        where, teachers = f"{population.where(name)}.teacher", population.policies[name].teachers
        if not wanted:
            if teachers:
                raise ConfigError(
                    f"{where}: the objective reads no teacher; set objective.reference=teacher "
                    "objective.kl=0.1 objective.estimator=exact, or algorithm=distillation to "
                    "learn from the teacher alone"
                )
            continue
        if not teachers:
            raise ConfigError(
                f"{where}: missing, and objective.reference=teacher; set it to a model, such as "
                "RUN/checkpoints/STEP/policies/NAME, or freeze the policy"
            )


def check_roles_taught(players: RolloutSetup, objective: Objective) -> None:
    """Raise ConfigError if a policy that learns has no teacher for a role of the training arena.

    A role that only an evaluation plays needs none; for its policy see `check_teachers`.
    """
    if not reads_teacher(objective):
        return
    arena, population = players.arena(), players.population
    for role in population.role_names:
        name = population.policy_of(role)
        trained = role in arena.roles or role in arena.optional_roles
        if not trained or name not in population.learning:
            continue
        teachers = population.policies[name].teachers
        if "" not in teachers and role not in teachers:
            raise ConfigError(
                f"{population.where(name)}.teacher: none for role {role!r}; add one, or name one "
                "model for all roles"
            )


def check_teacher_folders(population: Population) -> None:
    """Raise ConfigError if a teacher is named by a folder without a model.

    Only an experiment that learns reads teachers, so that a run can be evaluated without them.
    """
    for name in population.learning:
        for model in population.policies[name].teachers.values():
            check_folder(model, where=f"{population.where(name)}.teacher")


def teacher_notes(population: Population, objective: Objective) -> list[str]:
    """Return a line for each setting that makes learning from a teacher less effective."""
    if not reads_teacher(objective):
        return []
    notes = []
    if objective.divergence is None:
        notes.append(
            "objective.estimator: the KL to the teacher is estimated from the sampled tokens, with "
            "a large variance where the teacher is far away; objective.estimator=exact sums over "
            "the vocabulary"
        )
    exploiters = [name for name in population.extra_policies if name in population.learning]
    if exploiters and getattr(objective, "advantage", "credit") == "none":
        notes.append(
            f"population.extra_policies: {exploiters[0]!r} learns from its teacher and from no "
            "reward, so that it does not learn to exploit; choose a league without exploiters, or "
            "an objective that reads rewards"
        )
    return notes


def truncation_notes(players: RolloutSetup, objective: Objective) -> list[str]:
    """Return a line for each policy that learns from truncated sampling."""
    remedy = ""
    if isinstance(objective, PolicyLoss) and objective.correction == "none":
        remedy = (
            "; ratios to the truncated distribution begin below 1, and objective.correction="
            "truncated weighs each token by the probability that was kept"
        )
    return [
        f"sampling: policy {name!r} learns from truncated sampling (top_p, top_k or min_p of role "
        f"{role!r}), so that tokens outside of it are never tried or unlearned{remedy}"
        for name, role in players.truncated().items()
    ]
