"""Validation of the objects of a run against each other, before a model is loaded.

`selfplay.config.plain_data.check_config` has checked the config, and each object its own settings.
What is left are objects that do not fit each other, and the settings of policies and learners,
whose objects need a model. `validate` calls the checks below in the order in which they stand here.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.config.instantiate import TARGET, call, check_arguments, import_target
from selfplay.config.run_config import RunSettings
from selfplay.credit import Credit
from selfplay.credit.by_role import ByRole
from selfplay.engines.truncation import truncates
from selfplay.errors import ConfigError, nearest
from selfplay.experiment.collapse import CollapseMonitor
from selfplay.experiment.league import LeaguePlan
from selfplay.learner.learner import Learner, check_learner_settings
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.models.chat_template import check_settings
from selfplay.models.lora import require_peft
from selfplay.models.packaged import is_packaged, packaged_model
from selfplay.models.policy import device_of, load_policy, outline, positions
from selfplay.models.population import Population
from selfplay.models.tiny import build_model
from selfplay.models.tree_attention import kernel_device_problem
from selfplay.models.warmstart import WarmStart, tunes
from selfplay.rollout.policies import LEARNER, POLICY, lora_of
from selfplay.rollout.policy_pool import PolicyPool, check_known
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime import Runtime
from selfplay.sampler import Sampler


def validate(
    players: RolloutSetup,
    *,
    settings: RunSettings,
    runtime: Runtime,
    objective: Objective,
    shaping: Mapping[str, Any],
    credit: Credit,
    sampler: Sampler,
    collapse: CollapseMonitor,
    league: LeaguePlan | None,
) -> list[str]:
    """Check the objects of a run against each other. No model is loaded, no process started.

    `Experiment` calls it once, after it has built these objects.

    Returns:
        A line for each valid setting that does not do what its value suggests.
    Raises:
        ConfigError: For the first setting that cannot be used, in one line.
    """
    check_sampler_supports_credit(credit, sampler)
    check_roles(credit, shaping, players.roles)
    check_collapse(collapse, league, players.population)
    runtime.check(players)
    check_staleness(objective, runtime.max_staleness)
    check_policies(players, local=runtime.device is None)
    check_context_length(
        players.population,
        answer_limits(players.policy_pool),
        warmstart=players.config["warmstart"],
        longest=players.config["engine"].get("max_length"),
    )
    check_players(players.population, players.roles, league)
    check_opponents(players)
    return [
        *warmup_notes(settings, players.config["learner"]),
        *truncation_notes(players, objective),
    ]


def check_sampler_supports_credit(credit: Credit, sampler: Sampler) -> None:
    """Raise ConfigError, with the reason, if no sample could ever get an advantage.

    A credit method states what it needs in `tree` and `min_group_size` (see
    `selfplay.credit.base`); a sampler states what it provides in `tree` and `group_size`. An
    object without these attributes needs nothing. `ByRole` needs what each of its methods needs.
    """
    if isinstance(credit, ByRole):
        for method in credit.methods.values():
            check_sampler_supports_credit(method, sampler)
    name = type(credit).__name__
    if getattr(credit, "tree", False) and not getattr(sampler, "tree", False):
        raise ConfigError(
            f"credit: {name} credits branches, but {type(sampler).__name__} plays independent "
            "episodes; choose sampler=tree or sampler=branch, or another credit"
        )
    size, least = getattr(sampler, "group_size", None), getattr(credit, "min_group_size", 1)
    if size is not None and size < least:
        others = getattr(credit, "group_by", None) and " (or credit.group_by to role or prompt)"
        raise ConfigError(
            f"credit: {name} compares an agent with itself in at least {least} sibling "
            f"episodes, but sampler.group_size is {size}, so that every advantage would be zero; "
            f"set sampler.group_size to {least} or more{others or ''}"
        )


def check_roles(credit: Credit, shaping: Mapping[str, Any], roles: Collection[str]) -> None:
    """Raise ConfigError for an unknown role, and for a role without a credit method."""
    if isinstance(credit, ByRole):
        for name in credit.methods:
            if name not in roles and name != "default":
                raise ConfigError(f"credit.methods: no role {name!r}; {nearest(name, roles)}")
        for role in roles:
            if role not in credit.methods and "default" not in credit.methods:
                raise ConfigError(f"credit.methods: none for {role!r}; name it, or a default")
    for name, term in shaping.items():
        shaped = getattr(term, "role", None)
        if shaped is not None and shaped not in roles:
            raise ConfigError(f"shaping.{name}.role: no role {shaped!r}; {nearest(shaped, roles)}")


def check_collapse(
    collapse: CollapseMonitor, league: LeaguePlan | None, population: Population
) -> None:
    """Raise ConfigError for a response to a collapse that needs a missing league."""
    if not collapse.response.needs_league:
        return
    kind = type(collapse.response).__name__
    if league is None:
        raise ConfigError(f"collapse.response: {kind} needs a league; choose league=anchors")
    if not league.anchors or not population.opponents:
        raise ConfigError(
            f"collapse.response: {kind} needs anchors in the league; name some in "
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


def check_policies(players: RolloutSetup, *, local: bool) -> None:
    """Raise ConfigError for the first policy or learner with an invalid setting.

    No weights are loaded. `local` is True if policies learn in this process, on the devices that
    they name.
    """
    population, config = players.population, players.config
    learner = config["learner"]
    check_learner_settings(
        check_arguments(Learner, learner, where="learner", reserved=LEARNER), where="learner"
    )
    policies = population.policies(players.roles)
    for name, node in population.checkpoints().items():
        check_arguments(load_policy, node, where=f"population.opponents.{name}", reserved=POLICY)
        _check_model(node, where=f"population.opponents.{name}")
    for name, node in policies.items():
        overrides = f"population.overrides.{name}"
        where = overrides if name in population.overrides else "policy"
        check_arguments(load_policy, node, where=where, pending=("model", "lora"), reserved=POLICY)
        _check_model(node, where=where)
        if not node.get("model") and tunes(config["warmstart"]):
            raise ConfigError(
                f"{where}.model: missing, and the warm start fine-tunes one; choose "
                "policy=huggingface policy.model=NAME, or another warmstart"
            )
        own = population.learner_of(name)
        both = check_arguments(
            Learner, {**learner, **own}, where=f"{overrides}.learner", reserved=LEARNER
        )
        check_learner_settings({key: both[key] for key in own}, where=f"{overrides}.learner")
        kernel = {**learner, **own}.get("attention")
        if local and kernel and node.get("learn", True):
            device = device_of(str(node.get("device", "auto")), where)
            if reason := kernel_device_problem(kernel, device):
                key = f"{overrides}.learner" if "attention" in own else "learner"
                raise ConfigError(f"{key}.attention: {reason}")
        lora = lora_of(node, where=where)
        if lora is not None:
            require_peft(f"{where}.lora")
            base = _model_outline(node.get("model"), config["warmstart"], where=f"{where}.lora")
            if base is not None:
                lora.layers(base, where=f"{where}.lora")


def answer_limits(pool: PolicyPool) -> dict[str, tuple[str, int]]:
    """Return, for each role, the config key that limits its answers and the limit in tokens."""
    limits = {}
    for role in pool.roles:
        name = role if "max_tokens" in pool.sampling.get(role, {}) else "default"
        tokens = max(each.max_tokens for each in pool.limits(role).settings_in_training())
        limits[role] = (f"sampling.{name}.max_tokens", tokens)
    return limits


def check_context_length(
    population: Population,
    answers: Mapping[str, tuple[str, int]],
    *,
    warmstart: Mapping[str, Any],
    longest: int | None = None,
) -> None:
    """Raise ConfigError if the longest answer of a role leaves no room for a prompt.

    No weights are loaded.

    Args:
        population: The policies of the roles.
        answers: The limits of the answers, as `answer_limits` returns them.
        warmstart: Config of the warm start, which makes the models of policies without a model.
        longest: The engine's limit of a prompt and its answer together, in tokens, if it has one.
    """
    served = {**population.policies(answers), **population.checkpoints()}
    for role, (where, tokens) in answers.items():
        name = population.policy_of(role)
        if name not in served:  # a scripted opponent counts no tokens
            continue
        if longest is not None and tokens >= longest:
            raise ConfigError(
                f"{where}: {tokens} leaves no room for a prompt in engine.max_length={longest}; "
                "lower the one, or raise the other"
            )
        limit = _context_length(served[name], warmstart)
        if limit is not None and tokens >= limit:
            raise ConfigError(
                f"{where}: {tokens} leaves no room for a prompt in the {limit} that the model of "
                f"policy {name!r} reads; lower it"
            )


def check_players(population: Population, roles: Iterable[str], league: LeaguePlan | None) -> None:
    """Raise ConfigError for an invalid player of the league, and for a policy that never plays."""
    policies = population.policies(roles)
    players: Iterable[str] = ()
    if league is not None:
        learning = [name for name, settings in policies.items() if settings.get("learn", True)]
        league.settings.validate(learning, population.opponents)
        players = league.settings.players
    for name in population.extra_policies:
        if name not in players:
            raise ConfigError(
                f"population.extra_policies: {name!r} has no role, and no league.players names "
                "it, so that it would never play"
            )


def check_opponents(players: RolloutSetup) -> None:
    """Raise ConfigError for an unknown opponent of an evaluation."""
    known = (*players.population.policies(players.roles), *players.population.opponents)
    for name, evaluation in players.evaluations.items():
        check_known(evaluation.opponents, known, where=f"evaluations.{name}.opponents")


def warmup_notes(settings: RunSettings, learner: Mapping[str, Any]) -> list[str]:
    """Return a line if the learning rate is still rising at the end of the run."""
    updates = settings.steps * int(learner.get("mini_batches", 1))
    warmup = int(learner.get("warmup_steps", 0))
    if updates and warmup > updates:
        return [
            f"learner.warmup_steps: {warmup} is more than the {updates} optimizer steps of "
            f"run.steps={settings.steps}, so that the learning rate ends at "
            f"{updates / warmup:.2g} of learner.lr"
        ]
    return []


def truncated(players: RolloutSetup) -> dict[str, str]:
    """Return each policy that learns from truncated sampling, with a role of it."""
    policies = players.population.policies(players.roles)
    cut: dict[str, str] = {}
    for role in players.roles:
        name = players.population.policy_of(role)
        learns = name in policies and policies[name].get("learn", True)
        if learns and any(map(truncates, players.policy_pool.limits(role).settings_in_training())):
            cut.setdefault(name, role)
    return cut


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
        for name, role in truncated(players).items()
    ]


def _check_model(node: Mapping[str, Any], *, where: str) -> None:
    """Raise ConfigError if a model is neither a name nor a folder, or no known packaged model, or
    for a setting that no chat template can be given."""
    model = node.get("model")
    if model is not None and not isinstance(model, str):
        raise ConfigError(f"{where}.model: {model!r} does not fit: a name or a folder is needed")
    if model and is_packaged(model):
        packaged_model(model, where=f"{where}.model")
    check_settings(node.get("chat_template_kwargs") or {}, where=f"{where}.chat_template_kwargs")


def _context_length(node: Mapping[str, Any], warmstart: Mapping[str, Any]) -> int | None:
    """Return the longest input of a policy's model in tokens; None if unlimited or unknown."""
    if node.get("model"):
        return positions(str(node["model"]))
    if TARGET not in warmstart:
        return None
    model = _model_outline(None, warmstart, where="warmstart")  # refuses invalid sizes
    if model is None or "positions" not in (warmstart.get("model") or {}):
        return None  # a warm start chooses the size of its model from its demonstrations
    return int(model.config.max_position_embeddings)


def _model_outline(
    model: str | None, warmstart: Mapping[str, Any], *, where: str
) -> PreTrainedModel | None:
    """Return the modules of an adapter's base model without weights; None if unknown."""
    if model:
        return outline(model)
    if TARGET not in warmstart:
        raise ConfigError(
            f"{where}: an adapter needs a base; set policy.model, or choose a warmstart config"
        )
    if import_target(warmstart[TARGET], "warmstart") is not WarmStart:
        return None
    sizes = warmstart.get("model") or {}
    settings = check_arguments(
        build_model, sizes, where="warmstart.model", reserved=("vocabulary", "seed")
    )
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        made: PreTrainedModel = call(
            build_model, {"vocabulary": 8, "seed": 0, **settings}, where="warmstart.model"
        )
    return made
