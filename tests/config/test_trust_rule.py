"""Tests that a config of another author contains only reviewed names of this project's packages."""

import importlib
import inspect
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from pkgutil import resolve_name, walk_packages
from typing import Any

import pytest

import arenas
import roles
import selfplay
from arenas.external.imports import function, make_env
from selfplay.config import trust
from selfplay.config.components import ARGUMENTS, TARGETS
from selfplay.config.instantiate import build, check, import_target, signature
from selfplay.config.trust import GUARDS, TrustLimit, limited, needed
from selfplay.engines.scripted import Scripted
from selfplay.errors import ConfigError, SelfplayError
from selfplay.tools.mcp import MCPTool

PROGRAM = ["/bin/false"]
ADDRESS = {"_target_": "selfplay.tools.mcp.ServerAddress", "command": PROGRAM}
IMPORTS = "arenas.external.imports"
LOCAL = __name__
"""This module; a test may trust it as the package of a user."""

RENAMED = MCPTool
VALUE = Scripted.add


def rebuilt(**settings: Any) -> Any:
    return settings


BYPASSES: dict[str, dict[str, Any]] = {
    "a connection": {"_target_": "selfplay.tools.mcp.MCPConnection", "address": ADDRESS},
    "a function that connects": {"_target_": "selfplay.tools.mcp.connect", "address": ADDRESS},
    "an address alone": ADDRESS,
    "a function that finds classes": {
        "_target_": f"{IMPORTS}.make_env",
        "name": {
            "_target_": f"{IMPORTS}.function",
            "path": "selfplay.sandbox.Executor",
            "what": "x",
        },
        "arguments": {"packages": ["antigravity"]},
    },
    "a function that imports": {"_target_": f"{IMPORTS}.package", "name": "this", "what": "x"},
    "a lookup of names": {
        "_target_": "selfplay.config.instantiate.import_target",
        "name": "os.system",
    },
    "a builder of nodes": {"_target_": "selfplay.config.instantiate.build", "node": {}},
    "a caller": {
        "_target_": "selfplay.config.instantiate.call",
        "target": "os.system",
        "values": {},
    },
    "a cluster": {
        "_target_": "selfplay.runtime.cluster.RayCluster",
        "address": "127.0.0.1:1",
        "cpus": 1,
        "timeout": 1,
    },
    "the core of an engine": {
        "_target_": "selfplay.engines.vllm.core.EngineCore",
        "model": None,
        "settings": {
            "_target_": "selfplay.engines.vllm.core.CoreSettings",
            "options": {"worker_cls": "os.x"},
        },
    },
    "a process under another name": {
        "_target_": "arenas.questions.taskset.TasksetProcess",
        "python": "/bin/false",
    },
    "a sandbox without a pool": {"_target_": "selfplay.sandbox.process.SandboxProcess"},
    "the limits of a sandbox": {
        "_target_": "selfplay.sandbox.process.Limits",
        "packages": ["this"],
    },
    "a class imported by an arena": {
        "_target_": "arenas.absolute_zero.arena.Executor",
        "packages": ["this"],
    },
    "a module of a module": {"_target_": "selfplay.tools.mcp.os.system", "command": "true"},
    "a function of a module": {"_target_": "selfplay.sandbox.fork_server.os.execvp"},
    "a method": {"_target_": "selfplay.tools.mcp.MCPTool.call", "self": 1},
    "an inherited method": {"_target_": "arenas.games.kuhn.Kuhn.__init_subclass__"},
    "the globals of a function": {"_target_": "arenas.games.kuhn.deals.__globals__.get"},
    "the base of a class": {"_target_": "roles.player.Player.__class__"},
    "a partial": {"_target_": "functools.partial", "func": "os.system"},
    "a caller of methods": {"_target_": "operator.methodcaller", "name": "x"},
    "a getter": {"_target_": "builtins.getattr", "x": 1},
    "a built-in evaluator": {"_target_": "builtins.eval", "source": "1"},
    "Hydra's own lookup": {"_target_": "hydra.utils.get_method", "path": "os.system"},
    "Hydra's own builder": {"_target_": "hydra.utils.instantiate", "config": {}},
    "a writer of checkpoints": {
        "_target_": "selfplay.learner.checkpoint_writer.CheckpointWriter",
        "folder": "x",
    },
    "a pickler": {"_target_": "selfplay.learner.outline.OutlinePickler"},
    "a reader of files": {
        "_target_": "arenas.questions.files.json_lines",
        "path": "x",
        "of": "x",
    },
    "a function for prompts": {"_target_": "roles.prompts.load", "name": "x", "style": "x.jinja"},
    "Hydra's partial": {
        "_target_": "selfplay.tools.mcp.MCPConnection",
        "_partial_": True,
        "address": ADDRESS,
    },
    "a config of this project": {"_target_": "configs.os.system"},
    "a public name of the package": {"_target_": "selfplay.Experiment", "config": {}},
    "an inner node": {
        "_target_": "selfplay.tools.Toolbox",
        "tools": {"x": {"_target_": "selfplay.tools.mcp.MCPConnection", "address": ADDRESS}},
    },
}


@pytest.mark.parametrize("node", BYPASSES.values(), ids=list(BYPASSES))
def test_no_other_name_of_our_packages_is_accepted(node: dict[str, Any]) -> None:
    with limited(TrustLimit()):
        for use in (check, build, trust.admit_config):
            with pytest.raises(ConfigError, match=r"_target_: .*(--trust|CHANGELOG)"):
                use({"x": node})


def public() -> Iterator[tuple[str, Any]]:
    """Yield all public classes and functions, with their name in every module that has them."""
    for package in (selfplay, roles, arenas):
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] == "__main__":
                continue
            try:
                module = importlib.import_module(found.name)
            except (ImportError, SelfplayError):  # an extra that is not installed here
                continue
            for name, value in vars(module).items():
                if callable(value) and not name.startswith("_"):
                    yield f"{found.name}.{name}", value


def test_a_public_name_is_refused_unless_it_is_reviewed() -> None:
    names = dict(public())
    assert len(names) > 3000 and "selfplay.tools.mcp.MCPConnection" in names
    allowed: dict[str, set[str]] = {"_target_": set(), "script": set()}
    with limited(TrustLimit()):
        for name in names:
            for key, found in allowed.items():
                try:
                    import_target(name, "x", key=key)
                except ConfigError:
                    continue
                found.add(name)
    assert allowed["_target_"] == TARGETS & set(names)
    assert allowed["script"] == ARGUMENTS & set(names)


@pytest.mark.parametrize("name", sorted(TARGETS | ARGUMENTS))
def test_a_reviewed_name_is_our_own(name: str) -> None:
    """A listed name must not give an object of another package."""
    try:
        found = resolve_name(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    home = found.__name__ if inspect.ismodule(found) else found.__module__
    assert home.partition(".")[0] in ("selfplay", "roles", "arenas")


OUTWARD = {
    # A file that is read as data.
    "arenas.memory.locomo.tasks": {"path"},
    "arenas.memory.text_files.read": {"path"},
    "arenas.questions.files.read": {"path"},
    "selfplay.learner.chat_file.ChatFile": {"path"},
    # Dotted names, which are checked as arguments.
    "arenas.external.pettingzoo.PettingZoo": {"env"},
    "arenas.external.textarena.TextArena": {"env"},
    "selfplay.engines.scripted.Scripted": {"script"},
    "selfplay.tools.function.Function": {"function"},
    # The run's own folder, and models that any command loads (docs/architecture.md).
    "arenas.questions.reward_model.RewardModel": {"model"},
    "selfplay.config.run_config.RunSettings": {"folder"},
    "selfplay.learner.value_model.TransformerCritic": {"model"},
    "selfplay.models.warmstart.WarmStart": {"model"},
    # The guard of `mode` covers it.
    "selfplay.run.trackers.WandB": {"entity"},
}
"""Reviewed settings whose name suggests a file, a program, an address or code."""
SUSPICIOUS = (
    *("path", "file", "folder", "command", "url", "uri", "address", "environment", "module"),
    *("function", "script", "python", "program", "packages", "options", "model", "env", "entity"),
    *("key_variable", "base_url", "isolation", "runtime", "template_path"),
)


def test_a_setting_that_may_reach_outside_has_a_guard_or_a_review() -> None:
    found: dict[str, set[str]] = {}
    for name in TARGETS:
        try:
            known = signature(resolve_name(name)).known
        except ModuleNotFoundError:
            continue
        last = name.rpartition(".")[2]
        guards = [guard.key for guard in GUARDS if guard.name == last]
        open_to_all = set() if None in guards else {*known} & {*SUSPICIOUS} - {*guards}
        if open_to_all:
            found[name] = open_to_all
    whole = {name: keys for name, keys in OUTWARD.items() if resolve_or_none(name)}
    assert found == whole


def resolve_or_none(name: str) -> Any:
    try:
        return resolve_name(name)
    except ModuleNotFoundError:
        return None


def settings_in(hint: Any) -> Iterator[type]:
    """Yield the dataclasses in a hint; plain settings become one without a `_target_`."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from settings_in(inner)


def test_settings_without_a_target_build_no_class_with_a_guard() -> None:
    waiting = [found for name in TARGETS if (found := resolve_or_none(name))]
    seen = set[str]()
    while waiting:
        for hint in signature(waiting.pop()).hints.values():
            for each in settings_in(hint):
                if (title := f"{each.__module__}.{each.__qualname__}") not in seen:
                    seen.add(title)
                    waiting.append(each)
    assert "selfplay.league.config.PlayerConfig" in seen
    assert not {name.rpartition(".")[2] for name in seen} & {guard.name for guard in GUARDS}
    barred = ("selfplay.tools.mcp", "selfplay.sandbox", "selfplay.engines.vllm")
    assert not {name for name in seen if name.startswith(barred)}


@pytest.mark.parametrize("name", ["selfplay.sandbox.Executor", "selfplay.sandbox.pool.Executor"])
@pytest.mark.parametrize("what", ["env", "script", "function"])
def test_a_component_is_no_function_whose_arguments_others_choose(name: str, what: str) -> None:
    """The arguments of a tool come from a model, which another author trained."""
    with limited(TrustLimit()), pytest.raises(ConfigError, match="no function for settings"):
        import_target(name, "x", key=what)
    with limited(TrustLimit()), pytest.raises(ConfigError, match=r"--trust selfplay\.sandbox"):
        make_env(name, {})
    with limited(TrustLimit()), pytest.raises(ConfigError, match=r"--trust selfplay\.sandbox"):
        function(name, "render")


def test_an_object_is_no_env_either() -> None:
    with limited(TrustLimit()), pytest.raises(ConfigError, match="not a component"):
        make_env(MCPTool, {"command": PROGRAM})
    with limited(TrustLimit()), pytest.raises(ConfigError, match=r"--trust functools"):
        make_env(importlib.import_module("functools").partial(MCPTool), {"command": PROGRAM})


@pytest.mark.parametrize("settings", [{"command": PROGRAM}, {"url": "http://x"}])
def test_a_guard_holds_under_a_name_in_a_trusted_package(settings: dict[str, Any]) -> None:
    node = {"_target_": f"{LOCAL}.RENAMED", **settings}
    with limited(TrustLimit(packages=(LOCAL,))):
        for use in (check, build):
            with pytest.raises(ConfigError, match=r"--trust selfplay\.tools\.mcp"):
                use({"x": node})


@pytest.mark.parametrize("name", ["importlib", "VALUE"])
def test_a_trusted_package_gives_no_access_to_other_names(name: str) -> None:
    with limited(TrustLimit(packages=(LOCAL,))):
        with pytest.raises(ConfigError, match=r"neither a class|not a component"):
            import_target(f"{LOCAL}.{name}", "x")
        assert import_target(f"{LOCAL}.rebuilt", "x") is rebuilt
        assert function(f"{LOCAL}.rebuilt", "render") is rebuilt


WANDB = {"_target_": "selfplay.run.trackers.WandB", "entity": "theirs"}


@pytest.mark.parametrize("settings", [{}, {"mode": "online"}])
def test_a_tracker_with_the_users_key_needs_trust(settings: dict[str, Any]) -> None:
    with (
        limited(TrustLimit()),
        pytest.raises(ConfigError, match=r"--trust selfplay\.run\.trackers"),
    ):
        check({"trackers": {"wandb": {**WANDB, **settings}}})
    with limited(TrustLimit()):
        check({"trackers": {"wandb": {**WANDB, "mode": "offline"}}})
    for limit in (TrustLimit(packages=("selfplay.run.trackers",)), TrustLimit(trains=False)):
        with limited(limit):
            check({"trackers": {"wandb": {**WANDB, **settings}}})


def test_the_command_that_continues_a_run_trusts_what_it_needs() -> None:
    config = {
        "arena": {"_target_": "my_games.Coin"},
        "trackers": {"wandb": WANDB, "board": {"_target_": "selfplay.run.trackers.TensorBoard"}},
        "runtime": {"_target_": "selfplay.runtime.ray.RayRuntime", "address": None},
        "services": {"x": {"_target_": "arenas.games.tic_tac_toe.optimal"}},
    }
    assert needed(config) == ["arenas.games.tic_tac_toe", "my_games", "selfplay.run.trackers"]
    assert needed({"arena": {"_target_": "arenas.games.kuhn.Kuhn"}}) == []
