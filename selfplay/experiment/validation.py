"""Validation of a config: everything that can be refused before a model is loaded.

`validate` calls the checks below in the order in which they stand here.
"""

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.config import compose
from selfplay.config.instantiate import TARGET, build, call, check_arguments, import_target
from selfplay.config.run_config import RunSettings
from selfplay.credit.by_role import ByRole
from selfplay.engines.truncation import truncates
from selfplay.errors import ConfigError, nearest
from selfplay.experiment.collapse import CollapseMonitor
from selfplay.experiment.league import league_config
from selfplay.learner.learner import Learner, check_learner_settings
from selfplay.learner.objective import Objective
from selfplay.models.chat_template import check_settings
from selfplay.models.lora import require_peft
from selfplay.models.packaged import is_packaged, packaged_model
from selfplay.models.policy import device_of, load_policy, outline, positions
from selfplay.models.population import Population
from selfplay.models.renderer import ByteRenderer
from selfplay.models.tiny import build_model
from selfplay.models.tree_attention import kernel_device_problem
from selfplay.models.warmstart import WarmStart, tunes
from selfplay.role import Role
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.policies import LEARNER, POLICY, lora_of
from selfplay.rollout.policy_pool import check_known, rollout_settings, sampling_settings
from selfplay.rollout.rollout import MOST_THREADS, AgentSpec, check_sampling_limits
from selfplay.runtime import Runtime

METHODS = {
    "run": "keeps_checkpoint",
    "curriculum": "tasks",
    "population": "policy_of",
    "sampler": "sample",
    "credit": "assign",
    "collapse": "seed",
    "runtime": "check",
}
"""Name of the method that the class under each key must have."""


def validate(config: Mapping[str, Any]) -> list[str]:
    """Check a whole config. No model is loaded and no process is started.

    `Experiment` calls it once, before it builds anything.

    Returns:
        A line for each valid setting that does not do what its value suggests.
    Raises:
        ConfigError: For the first setting that cannot be used, in one line.
    """
    compose.validate(config)
    check_methods(config)
    check_sampler_supports_credit(config["credit"], config["sampler"])
    check_roles(config["credit"], config["shaping"], config["roles"])
    check_collapse(config)
    build(config["trackers"], where="trackers")  # reports a missing package now
    call(RunSettings, {k: v for k, v in config["run"].items() if k != TARGET}, where="run")
    runtime: Runtime = build(config["runtime"], where="runtime")
    runtime.check(config)
    check_staleness(config, runtime.max_staleness)
    check_rollout(config["rollout"])
    check_sampling(config["sampling"], config["roles"])
    population: Population = build(config["population"], where="population")
    check_policies(population, config, local=runtime.device is None)
    check_context_length(
        population,
        answer_limits(config["sampling"], config["roles"]),
        warmstart=config["warmstart"],
        longest=config["engine"].get("max_length"),
    )
    check_league(config["league"], population, config["roles"])
    check_evaluations(config["evaluations"], population, config["roles"])
    return [*notes(config), *truncation_notes(config, population)]


def check_methods(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a class without the method that its config key needs."""
    for key, method in METHODS.items():
        target = import_target(config[key][TARGET], key)
        if inspect.isclass(target) and not hasattr(target, method):
            raise ConfigError(
                f"{key}.{TARGET}: {config[key][TARGET]} has no method {method!r}, so it is not "
                f"a valid {key}; see selfplay list {key}"
            )


def check_sampler_supports_credit(credit: Mapping[str, Any], sampler: Mapping[str, Any]) -> None:
    """Raise ConfigError, with the reason, if no sample could ever get an advantage.

    A credit method states what it needs in `tree` and `min_group_size` (see
    `selfplay.credit.base`); a sampler states what it provides in `tree` and `group_size`. A class
    without these attributes needs nothing. A method that consists of `methods` needs what they
    need.
    """
    for name, part in credit.get("methods", {}).items():
        if not isinstance(part, Mapping):
            raise ConfigError(f"credit.methods.{name}: no method; drop it: ~credit.methods.{name}")
        check_sampler_supports_credit(part, sampler)
    method = import_target(credit[TARGET], "credit")
    source = import_target(sampler[TARGET], "sampler")
    if getattr(method, "tree", False) and not getattr(source, "tree", False):
        raise ConfigError(
            f"credit: {method.__name__} credits branches, but {source.__name__} plays independent "
            "episodes; choose sampler=tree or sampler=branch, or another credit"
        )
    parameter = inspect.signature(source).parameters.get("group_size")
    if parameter is None or not hasattr(method, "min_group_size"):
        return
    size, least = sampler.get("group_size", parameter.default), method.min_group_size(credit)
    if isinstance(size, int) and size < least:
        others = " (or credit.group_by to role or prompt)" if "group_by" in credit else ""
        raise ConfigError(
            f"credit: {method.__name__} compares an agent with itself in at least {least} sibling "
            f"episodes, but sampler.group_size is {size}, so that every advantage would be zero; "
            f"set sampler.group_size to {least} or more{others}"
        )


def check_roles(
    credit: Mapping[str, Any], shaping: Mapping[str, Any], roles: Collection[str]
) -> None:
    """Raise ConfigError for an unknown role, and for a role without a credit method."""
    methods = credit.get("methods", {})
    if import_target(credit[TARGET], "credit") is ByRole:
        for name in methods:
            if name not in roles and name != "default":
                raise ConfigError(f"credit.methods: no role {name!r}; {nearest(name, roles)}")
        for role in roles:
            if role not in methods and "default" not in methods:
                raise ConfigError(f"credit.methods: none for {role!r}; name it, or a default")
    for name, node in shaping.items():
        role = node.get("role")
        if role is not None and role not in roles:
            raise ConfigError(f"shaping.{name}.role: no role {role!r}; {nearest(role, roles)}")


def check_collapse(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for an invalid rule, and for a response that needs a missing league."""
    monitor: CollapseMonitor = build(config["collapse"], where="collapse")
    if not monitor.response.needs_league:
        return
    league, kind = config["league"], type(monitor.response).__name__
    if TARGET not in league:
        raise ConfigError(f"collapse.response: {kind} needs a league; choose league=anchors")
    if league.get("anchors") == [] or not config["population"].get("opponents"):
        raise ConfigError(
            f"collapse.response: {kind} needs anchors in the league; name some in "
            "population.opponents, and leave league.anchors null"
        )


def check_staleness(config: Mapping[str, Any], max_staleness: int) -> None:
    """Raise ConfigError if the objective cannot use samples of earlier weights."""
    if not max_staleness:
        return
    objective: Objective = build(config["objective"], where="objective")
    if not objective.off_policy:
        raise ConfigError(
            "objective: it needs samples of the present weights, and "
            f"runtime.max_staleness={max_staleness} makes them older; "
            "set objective.correction=truncated (or masked)"
        )


def check_rollout(rollout: Mapping[str, Any]) -> None:
    """Raise ConfigError for an invalid setting of the rollouts."""
    settings = rollout_settings(rollout)
    if settings.get("overlap", 0) > 1:
        raise ConfigError(
            f"rollout.overlap: {settings['overlap']} does not fit: between 0 and 1 is needed"
        )
    for name in ("threads", "tool_threads"):
        if settings.get(name, 1) > MOST_THREADS:
            raise ConfigError(
                f"rollout.{name}: {settings[name]} does not fit: {MOST_THREADS} is the maximum"
            )


def check_sampling(sampling: Mapping[str, Any], roles: Collection[str]) -> None:
    """Raise ConfigError for an unknown role or invalid limits in `sampling`."""
    if "default" not in sampling:
        raise ConfigError("sampling.default: missing; it limits the answers of all other roles")
    known = ("default", *roles)
    for role, node in sampling.items():
        if role not in known:
            raise ConfigError(f"sampling.{role}: no such role; {nearest(role, known)}")
        _sampled(node, where=f"sampling.{role}")


def check_policies(population: Population, config: Mapping[str, Any], *, local: bool) -> None:
    """Raise ConfigError for the first policy or learner with an invalid setting.

    No weights are loaded. `local` is True if policies learn in this process, on the devices that
    they name.
    """
    learner = config["learner"]
    check_learner_settings(
        check_arguments(Learner, learner, where="learner", reserved=LEARNER), where="learner"
    )
    policies = population.policies(config["roles"])
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


def answer_limits(sampling: Mapping[str, Any], roles: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return, for each role, the config key that limits its answers and the limit in tokens."""
    limits = {}
    for role in roles:
        name = role if "max_tokens" in sampling.get(role, {}) else "default"
        spec = _sampled(sampling[name], where=f"sampling.{name}")
        tokens = max(each.max_tokens for each in spec.settings_in_training())
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


def check_league(node: Mapping[str, Any], population: Population, roles: Iterable[str]) -> None:
    """Raise ConfigError for an invalid league. An empty node means no league."""
    policies = population.policies(roles)
    learning = [name for name, settings in policies.items() if settings.get("learn", True)]
    players: Iterable[str] = ()
    if node:
        settings = league_config(node)
        settings.validate(learning, population.opponents)
        players = settings.players
    for name in population.extra_policies:
        if name not in players:
            raise ConfigError(
                f"population.extra_policies: {name!r} has no role, and no league.players names "
                "it, so that it would never play"
            )


def check_evaluations(
    evaluations: Mapping[str, Mapping[str, Any]], population: Population, roles: Iterable[str]
) -> None:
    """Raise ConfigError for an invalid setting or an unknown opponent of an evaluation."""
    known = (*population.policies(roles), *population.opponents)
    for name, node in evaluations.items():
        where = f"evaluations.{name}"
        settings = check_arguments(Evaluation, node, where=where, pending=("arena", "tasks"))
        check_known(settings.get("opponents", ()), known, where=f"{where}.opponents")
        try:
            check_sampling_limits(temperature=settings.get("temperature", 1.0))
        except ValueError as error:
            raise ConfigError(f"{where}.{error}") from error


def notes(config: Mapping[str, Any]) -> list[str]:
    """Return a line for each valid setting that does not do what its value suggests."""
    steps = int(config["run"]["steps"])
    updates = steps * int(config["learner"].get("mini_batches", 1))
    warmup = int(config["learner"].get("warmup_steps", 0))
    if updates and warmup > updates:
        return [
            f"learner.warmup_steps: {warmup} is more than the {updates} optimizer steps of "
            f"run.steps={steps}, so that the learning rate ends at {updates / warmup:.2g} of "
            "learner.lr"
        ]
    return []


def truncation_notes(config: Mapping[str, Any], population: Population) -> list[str]:
    """Return a line for each policy that learns from truncated sampling."""
    policies = population.policies(config["roles"])
    cut: dict[str, str] = {}
    for role in config["roles"]:
        name = population.policy_of(role)
        node = {**config["sampling"]["default"], **config["sampling"].get(role, {})}
        learns = name in policies and policies[name].get("learn", True)
        spec = _sampled(node, where=f"sampling.{role}")
        if learns and any(map(truncates, spec.settings_in_training())):
            cut.setdefault(name, role)
    remedy = ""
    if config["objective"].get("correction", "none") == "none":
        remedy = (
            "; ratios to the truncated distribution begin below 1, and objective.correction="
            "truncated weighs each token by the probability that was kept"
        )
    return [
        f"sampling: policy {name!r} learns from truncated sampling (top_p, top_k or min_p of role "
        f"{role!r}), so that tokens outside of it are never tried or unlearned{remedy}"
        for name, role in cut.items()
    ]


def _sampled(node: Mapping[str, Any], *, where: str) -> AgentSpec:
    """Return sampling settings as those of a seat; raises ConfigError for an invalid one."""
    limits = sampling_settings(node, where=where)
    try:
        spec = AgentSpec(role=Role(), policy="", renderer=ByteRenderer(), **limits)
        spec.settings_in_training()  # checks all values of the schedules
        return spec
    except ValueError as error:
        raise ConfigError(f"{where}.{error}") from error


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
