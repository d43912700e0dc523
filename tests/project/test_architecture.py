"""Tests of the architecture: imports go down the layers, files are short, imports are light."""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

import selfplay
from tests.helpers.repository import ROOT

PACKAGES = ("selfplay", "roles", "arenas", "configs")

LAYERS = (
    ("cli",),
    ("study/measures",),
    ("train", "study", "viewer"),
    ("experiment",),
    ("runtime",),
    ("league", "plan", "sampler"),
    ("rollout",),
    ("engines/vllm",),
    ("engines", "learner"),
    ("models", "run/report"),
    ("role", "run"),
    ("tools",),
    ("arena", "config", "credit", "curriculum", "sandbox", "study/stats"),
    ("author_code",),
    ("drawing", "errors", "rng", "types"),
    ("number_array",),
)
"""The modules, packages and groups (folders of a package) of `selfplay` from top to bottom.

A module may import modules of lower layers and of its own package or group. A group without an
entry belongs to its package.
"""

AUTHORS = {
    "roles": {"arena", "role", "types", "errors", "rng", "sandbox"},
    "arenas": {
        "arena",
        "role",
        "types",
        "errors",
        "rng",
        "drawing",
        "sandbox",
        "curriculum",
        "credit.rewards",
        "tools",
        "config.trust",
        "config.json_lines",
        "config.regular_files",
        "models.sequence_scorer",
    },
}
"""Modules of `selfplay` that roles and arenas may import. Neither imports the other."""

OUTSIDE_LAYERS = {"__init__", "__main__"}
"""Modules outside of the layers: the public names, which load on first use, and `-m selfplay`."""

HEAVY = {"torch", "transformers", "vllm", "ray", "pettingzoo"}
LONGEST_FILE = 450
LONGEST_CREDIT_METHOD = 90
CREDIT_MACHINERY = {
    "__init__",
    "assigned",
    "base",
    "joint_actions",
    "missing_signals",
    "replay",
    "rewards",
    "shaping",
    "team_return",
    "trace",
    "tree",
}
LONG_FILES: dict[str, str] = {}
"""Files that may be longer, each with the reason."""

RANK = {name: rank for rank, layer in enumerate(reversed(LAYERS)) for name in layer}
HOME = selfplay._HOME


FOLDERS = sorted((ROOT / "selfplay").glob("*/__init__.py"))


class Import(NamedTuple):
    """A module that a source file imports, and the line of the import."""

    line: int
    module: str


def imports(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Yield every import of a source, also in functions, with relative imports resolved."""
    parts = module.split(".")
    package = parts if is_package else parts[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, f"{origin}.{alias.name}")
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            name = called.id if isinstance(called, ast.Name) else called
            target = node.args[0]
            if name in ("import_module", "__import__") and isinstance(target, ast.Constant):
                yield Import(node.lineno, str(target.value))


def layer_of(module: str) -> str:
    """Return the entry of LAYERS for a module: `selfplay.engines.kv_cache` -> `engines`.

    A public name of `selfplay` has the entry of the module that defines it.
    """
    parts = module.split(".")[1:] or ["__init__"]
    if parts[0] in HOME:
        return HOME[parts[0]].split(".")[1]
    group = "/".join(parts[:2])
    return group if group in RANK else parts[0]


def refusal(importer: str, imported: str) -> str | None:
    """Return the reason why `importer` may not import `imported`, or None if it may."""
    source, target = importer.split(".")[0], imported.split(".")[0]
    if target not in PACKAGES or (source == target != "selfplay"):
        return None
    if source in AUTHORS:
        module = imported.removeprefix("selfplay.")
        if target == "selfplay" and any(
            layer_of(imported) == name or module.startswith(name) for name in AUTHORS[source]
        ):
            return None
        allowed = ", ".join(sorted(AUTHORS[source]))
        return f"{importer} -> {imported}: {source} may import from selfplay only {allowed}"
    if target != "selfplay":
        return f"{importer} -> {imported}: selfplay never imports {target}, a config names it"
    upper, lower = layer_of(importer), layer_of(imported)
    if upper in OUTSIDE_LAYERS or upper == lower or imported == "selfplay.__version__":
        return None
    if upper not in RANK:
        return f"{upper} is in no layer of LAYERS"
    if lower not in RANK:
        return f"{lower} is in no layer of LAYERS, nor a public name"
    if RANK[lower] < RANK[upper]:
        return None
    ranks = f"{upper} (rank {RANK[upper]}) -> {lower} (rank {RANK[lower]})"
    return f"{ranks} does not go down; see LAYERS"


def module_of(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(*packages: str) -> list[Path]:
    """Return all Python files of the packages."""
    return sorted(chain.from_iterable((ROOT / package).rglob("*.py") for package in packages))


def length(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def test_imports_go_down_the_layers() -> None:
    broken: list[str] = []
    for path in sources(*PACKAGES):
        module = module_of(path)
        for line, imported in imports(path.read_text(), module, path.stem == "__init__"):
            if reason := refusal(module, imported):
                broken.append(f"{path.relative_to(ROOT)}:{line}: {reason}")
    assert not broken, "\n" + "\n".join(dict.fromkeys(broken))


def test_every_module_of_selfplay_is_in_one_layer() -> None:
    named = list(chain.from_iterable(LAYERS))
    present = {layer_of(module_of(path)) for path in sources("selfplay")} - OUTSIDE_LAYERS
    assert len(named) == len(set(named)), "LAYERS names a module twice"
    assert not present - set(named), f"in no layer, add to LAYERS: {sorted(present - set(named))}"
    assert not set(named) - present, f"LAYERS names no module: {sorted(set(named) - present)}"


@pytest.mark.parametrize("layer", sorted(path.parent.name for path in FOLDERS))
def test_no_modules_of_a_layer_import_each_other(layer: str) -> None:
    """Modules of an import cycle can only be read and changed together."""
    paths = {module_of(path): path for path in sources(f"selfplay/{layer}")}
    left = {
        module: {
            name if name in paths else name.rpartition(".")[0]
            for _, name in imports(path.read_text(), module, path.stem == "__init__")
        }.intersection(paths)
        - {module}
        for module, path in paths.items()
    }
    # Modules that import none of the modules left are in no cycle.
    while free := [module for module, needed in left.items() if not needed & left.keys()]:
        for module in free:
            del left[module]
    assert not left


@pytest.mark.parametrize("name", ["number_array", "types", "errors"])
def test_the_vocabulary_imports_nothing_else_of_ours(name: str) -> None:
    found = imports((ROOT / "selfplay" / f"{name}.py").read_text(), f"selfplay.{name}")
    ours = [imported for _, imported in found if imported.split(".")[0] in PACKAGES]
    assert not [each for each in ours if not each.startswith("selfplay.number_array.")]


@pytest.mark.parametrize(
    ("importer", "source", "reason"),
    [
        ("selfplay.rollout.rollout", "from selfplay.train import run", "does not go down"),
        ("selfplay.rollout.rollout", "from selfplay import train", "does not go down"),
        ("selfplay.rollout.rollout", "import selfplay.train", "does not go down"),
        ("selfplay.rollout.rollout", "from ..train import run", "does not go down"),
        ("selfplay.engines.kv_cache", "from .. import train", "does not go down"),
        ("selfplay.rollout.rollout", "def play():\n    import selfplay.train", "does not go down"),
        ("selfplay.credit.rewards", "from selfplay import Arena", "does not go down"),
        ("selfplay.errors", "import selfplay.types", "does not go down"),
        ("selfplay.train", "from arenas.debate.arena import Debate", "never imports arenas"),
        ("selfplay.train", "import_module('roles.solver')", "never imports roles"),
        ("selfplay.train", "importlib.import_module('roles.solver')", "never imports roles"),
        ("selfplay.train", "from selfplay import Nothing", "in no layer"),
        (
            "arenas.debate.arena",
            "from selfplay.learner import Learner",
            "may import from selfplay only",
        ),
        ("arenas.debate.arena", "from roles.solver import Solver", "may import from selfplay only"),
        ("roles.solver", "from selfplay.curriculum import Buffer", "may import from selfplay only"),
        ("selfplay.rollout.rollout", "from selfplay.types import Turn", None),
        ("selfplay.rollout.rollout", "from selfplay import __version__", None),
        ("selfplay.engines.kv_cache", "from selfplay.engines import Engine", None),
        ("selfplay.__main__", "from selfplay.cli.main import main", None),
        ("arenas.debate.arena", "from selfplay import Arena, Task", None),
        ("arenas.debate.arena", "from arenas.tools import Tools", None),
        ("arenas.debate.arena", "from selfplay.curriculum import Buffer", None),
        ("arenas.debate.arena", "import json, numpy", None),
    ],
)
def test_an_import_is_allowed_or_refused(importer: str, source: str, reason: str | None) -> None:
    verdicts = {refusal(importer, imported) for _, imported in imports(source, importer)}
    verdict = "; ".join(text for text in verdicts if text)
    assert reason in verdict if reason else not verdict


def test_no_class_name_is_used_twice() -> None:
    found = Counter(
        node.name
        for package in ("selfplay", "roles", "arenas")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in found.items() if count > 1] == []


PROBED = {
    "selfplay/arena/demonstrations.py": "a source that a config names",
    "selfplay/author_code.py": "an object that a config names",
    "selfplay/config/instantiate.py": "the module that a config names",
    "selfplay/config/threads.py": "the platform",
    "selfplay/engines/vllm/adapter_arrival.py": "layers of vLLM and of peft",
    "selfplay/engines/vllm/weight_update.py": "a model of vLLM",
    "selfplay/learner/logprobs.py": "a model of transformers",
    "selfplay/learner/process_group.py": "a tensor of torch",
    "selfplay/rollout/setup.py": "an object that a config names",
    "selfplay/sandbox/surroundings.py": "the platform",
    "selfplay/sandbox/templates.py": "the platform",
    "arenas/collaboration/code_use.py": "a value that a program returned",
    "arenas/external/imports.py": "a module of another library",
    "arenas/external/pettingzoo.py": "a space of gymnasium",
    "arenas/external/textarena.py": "a state of textarena",
    "arenas/questions/_reasoning_program.py": "a value of reasoning_gym",
}
"""Modules that may call `hasattr`, and the object that they probe and did not make."""


def test_only_objects_of_others_are_probed() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in ("selfplay", "roles", "arenas")
        for path in (ROOT / package).rglob("*.py")
        if "hasattr(" in path.read_text(encoding="utf-8")
    }
    assert found == set(PROBED)


def test_import_selfplay_is_light() -> None:
    script = "import json, sys, selfplay; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {module.split(".")[0] for module in json.loads(ran.stdout)}
    assert "selfplay" in loaded
    assert not loaded & HEAVY, f"import selfplay loads {sorted(loaded & HEAVY)}"


def test_the_public_names_resolve() -> None:
    assert len(selfplay.__all__) == len(set(selfplay.__all__))
    for name in selfplay.__all__:
        assert getattr(selfplay, name) is getattr(import_module(HOME[name]), name)
        assert name in dir(selfplay)
    everything: dict[str, object] = {}
    exec("from selfplay import *", everything)
    assert set(everything) - {"__builtins__"} == set(selfplay.__all__)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = selfplay.nothing_of_the_kind


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=lambda path: str(path.relative_to(ROOT)))
def test_exported_names_exist(path: Path) -> None:
    if path.stem == "__main__":
        return  # only the interpreter imports it
    module = import_module(module_of(path))
    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
    assert not missing, f"{path.relative_to(ROOT)} exports {missing}, which do not exist"


def test_the_top_of_the_library_has_few_files_and_folders() -> None:
    files = [path.stem for path in (ROOT / "selfplay").glob("*.py")]
    assert len(files) <= 10 and len(FOLDERS) <= 19, (files, FOLDERS)


def test_files_stay_small() -> None:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    files = [*sources(*PACKAGES, "tests"), *scripts]
    lengths = {str(path.relative_to(ROOT)): length(path) for path in files}
    long = {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}
    assert set(long) <= set(LONG_FILES), f"over {LONGEST_FILE} lines: {long}; split them by topic"
    assert set(LONG_FILES) <= set(long), "LONG_FILES lists a file that is short or missing"


def test_a_credit_method_stays_a_page() -> None:
    methods = [path for path in sources("selfplay/credit") if path.stem not in CREDIT_MACHINERY]
    long = {path.name: length(path) for path in methods if length(path) >= LONGEST_CREDIT_METHOD}
    assert methods
    assert not long, f"a credit method has under {LONGEST_CREDIT_METHOD} lines: {long}"


def test_no_file_has_a_catch_all_name() -> None:
    names = {"util", "utils", "helper", "helpers", "common", "misc"}
    found = [str(p.relative_to(ROOT)) for p in sources(*PACKAGES, "tests") if p.stem in names]
    assert not found, f"name the file after its content: {found}"
