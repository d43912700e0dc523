"""Write docs/configuration.md from the config files and the signatures of the classes they name.

    python scripts/make_docs.py            # write the page
    python scripts/make_docs.py --check    # exit code 1 if the page is not up to date

The script reads the source files of the configs' objects as data and imports none of them.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from textwrap import dedent

import yaml

from selfplay.config.descriptions import comment, definition, summary, targets
from selfplay.config.plain_data import PROVIDED

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/configuration.md"
GROUPS = {
    "algorithm": "Credit, objective and sampler together; see [algorithms](algorithms.md).",
    "arena": "The game.",
    "roles": "Prompts and parsers of the agents, by the role names of the arena.",
    "curriculum": "The source of tasks.",
    "services": "Objects outside of the arena, such as the sandbox and the task buffer.",
    "policy": "The model of a policy.",
    "warmstart": "Supervised training before self-play: of a new tiny model, or of `policy.model`.",
    "population": "The policies, and the roles that each of them plays.",
    "opponents": "Opponents by name, added with `+opponents=NAME`; see [the league](league.md).",
    "league": "Snapshots, matchmaking and ratings; see [the league](league.md).",
    "sampler": "The way in which the episodes of a group are sampled.",
    "shaping": "Changes of rewards after the rollout.",
    "credit": "Rewards to advantages.",
    "objective": "The loss of the learner.",
    "evaluations": "Episodes on held-out tasks or against fixed opponents.",
    "collapse": "Rules that detect a collapse, and the response.",
    "trackers": "Copies of the metrics for other tools.",
    "engine": "The sampler of completions; see [clusters](clusters.md).",
    "runtime": "One process, or workers of a Ray cluster; see [clusters](clusters.md).",
    "cluster": "Devices for `selfplay plan`; see [planning a run](plan.md).",
    "recipe": "Engine, runtime and memory for a number of GPUs; see [clusters](clusters.md).",
    "experiment": "A complete choice; `tiny/` was run on a laptop, `paper/` has a paper's size.",
}
"""The config groups in the order of the page, each with one line."""
SETTINGS = {
    "run": "selfplay.config.run_config.RunSettings",
    "learner": "selfplay.learner.learner_settings.LearnerSettings",
    "rollout": "selfplay.rollout.rollout_settings.RolloutSettings",
    "sampling": "selfplay.rollout.sampling_settings.SamplingSettings",
}
"""Keys of base.yaml without a group, each with the class that takes its settings."""
MORE = {
    "evaluations": ("selfplay.rollout.evaluation.Evaluation",),
    "league": ("selfplay.league.ratings.Elo",),
}
"""Further classes of a group, which no config of the group names by `_target_`."""
MARKUP = re.compile(r"[*\[\]]|(?<![A-Za-z0-9])_")
"""Characters of a docstring that Markdown would read as markup."""
PLAIN = ("str", "int", "float", "bool")
"""Types of parameters that no service has."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a class or function."""

    name: str
    type: str
    default: str
    text: str


def parameters(target: str) -> list[Parameter]:
    """Return the parameters of a class or function, with their documentation."""
    found = definition(target)
    if found is None:
        return []
    home, node = found
    if isinstance(node, ast.FunctionDef):
        return list(arguments(node))
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            own = {each.name: each for each in arguments(part)}
            inherited = {}
            if part.args.kwarg is not None:
                above = (each for base in bases(home, node) for each in parameters(base))
                inherited = {each.name: each for each in above}
            return [*own.values(), *(inherited[name] for name in inherited if name not in own)]
    fields = list(attributes(node)) if is_dataclass(node) else []
    return fields or [each for base in bases(home, node) for each in parameters(base)]


def bases(home: str, node: ast.ClassDef) -> list[str]:
    """Return the import paths of a class's bases."""
    return [f"{home}.{ast.unparse(base).partition('[')[0]}" for base in node.bases]


def is_dataclass(node: ast.ClassDef) -> bool:
    """Return True if a class is decorated as a dataclass."""
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def attributes(node: ast.ClassDef) -> Iterator[Parameter]:
    """Yield the fields of a dataclass; a string after a field documents it."""
    for part, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(part, ast.AnnAssign) or "ClassVar" in ast.unparse(part.annotation):
            continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        default = ast.unparse(part.value) if part.value else ""
        yield Parameter(
            name=ast.unparse(part.target),
            type=ast.unparse(part.annotation),
            default=default,
            text=text,
        )


def arguments(node: ast.FunctionDef) -> Iterator[Parameter]:
    """Yield the arguments of a function; its docstring documents them under `Args:`."""
    documented = documentation(ast.get_docstring(node) or "")
    given = node.args
    positional = [each for each in given.args if each.arg != "self"]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    pairs = [
        *zip(positional, [*padding, *given.defaults], strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        yield Parameter(
            name=argument.arg,
            type=ast.unparse(argument.annotation) if argument.annotation else "",
            default=ast.unparse(default) if default else "",
            text=documented.get(argument.arg, ""),
        )


def documentation(docstring: str) -> dict[str, str]:
    """Return the text of each argument in a docstring.

    An entry `a, b: text` documents both arguments.
    """
    _, args, rest = docstring.partition("Args:\n")
    if not args:
        single = re.match(r"`(\w+)`:? (?:is )?(.*)", docstring, re.DOTALL)
        return {single.group(1): single.group(2)} if single else {}
    lines = rest.splitlines()
    # Entries are indented like the first one, and their further lines more than that.
    margin = " " * (len(lines[0]) - len(lines[0].lstrip()))
    section = takewhile(lambda line: not line.strip() or line.startswith(margin), lines)
    found: dict[str, str] = {}
    for entry in re.split(r"\n+(?! )", dedent("\n".join(section)).strip()):
        names, _, text = entry.partition(": ")
        found |= dict.fromkeys(names.split(", "), text)
    return found


def described(target: str) -> Iterator[str]:
    """Yield the lines of a class's docstring up to `Args:`, as Markdown."""
    found = definition(target)
    written = ast.get_docstring(found[1]) if found else None
    for paragraph in (written or "").split("\n\n"):
        if paragraph.startswith("Args:"):
            return
        pieces = re.split(r"(`[^`]*`)", " ".join(paragraph.split()))
        yield "".join(piece if piece.startswith("`") else escaped(piece) for piece in pieces)
        yield ""


def escaped(text: str) -> str:
    """Return a text with its markup characters as plain characters of Markdown."""
    return MARKUP.sub(r"\\\g<0>", text).replace("<", "&lt;")


def cell(text: str) -> str:
    """Return a text as one cell of a table."""
    # Markdown reads "[0][2]" as a link to a reference.
    return " ".join(text.split()).replace("|", "\\|").replace("][", "]\\[")


def code(text: str) -> str:
    """Return a text as code in a cell of a table; empty if it is empty."""
    return f"`{cell(text)}`" if text else ""


@cache
def services() -> set[str]:
    """Return the names of the services in `configs/services`."""
    files = (ROOT / "configs/services").glob("*.yaml")
    nodes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]
    return {str(name) for node in nodes for name in node if name != "defaults"}


def source(parameter: Parameter, group_name: str) -> str:
    """Return the source of the value of a parameter without a default.

    `group_name` is the config group that builds its class; "" for the settings without a group.
    """
    if parameter.name in PROVIDED.get(group_name, ()):
        return "provided"
    # A warm start is built without the services, and no service is a plain value.
    given = group_name not in ("", "warmstart") and parameter.type not in PLAIN
    return "service" if given and parameter.name in services() else "required"


def table(found: list[Parameter], group_name: str = "") -> Iterator[str]:
    """Yield the lines of a table of parameters; `group_name` is that of `source`."""
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for each in found:
        default = code(each.default) or source(each, group_name)
        yield f"| `{each.name}` | {code(each.type)} | {default} | {cell(each.text)} |"


def group(name: str, seen: set[str]) -> Iterator[str]:
    """Yield the lines of a group: its configs, and the keys of the classes that they build.

    Classes in `seen` have their keys in an earlier group; new ones are added to it.
    """
    yield from (f"## {name}", "", GROUPS[name], "")
    classes: dict[str, None] = {}
    yield from ("| config | about | builds |", "|---|---|---|")
    folder = ROOT / "configs" / name
    for path in sorted(folder.rglob("*.yaml")):
        choice = str(path.relative_to(folder).with_suffix(""))
        text = path.read_text(encoding="utf-8")
        built = list(dict.fromkeys(targets(yaml.safe_load(text))))
        if name != "experiment":
            classes |= dict.fromkeys(built)
        shown = ", ".join(f"`{each.rpartition('.')[2]}`" for each in built)
        about = comment(text) or (summary(built[0]) if built else "")
        yield f"| `{choice}` | {cell(about)} | {shown} |"
    yield ""
    for each in (*MORE.get(name, ()), *classes):
        if each in seen:
            continue
        seen.add(each)
        paragraphs = list(described(each)) if name == "credit" else []
        found = parameters(each)
        if paragraphs or found:
            yield from (f"`{each}`", "", *paragraphs)
        if found:
            yield from (*table(found, name), "")


def page() -> str:
    """Return the text of the page."""
    lines = [
        "# Configuration",
        "",
        "Written by `scripts/make_docs.py` from `configs/` and the signatures of the code. Change "
        "those, not this page.",
        "",
        "A config file of a group names a class (`_target_`) and its arguments; every key can be "
        "set on the command line, such as `learner.lr=1e-4`. [Configs and the command "
        "line](configs.md) explains the syntax. In the column of defaults, *required* is a key "
        "that needs a value, *provided* a parameter that the program fills in, and *service* one "
        "that the program fills in if the config has [a service of this "
        "name](sandbox.md#programs-in-an-arena-of-yours).",
        "",
        "Groups: " + " · ".join(f"[{name}](#{name})" for name in GROUPS) + ".",
        "",
        "## Settings without a group",
        "",
        "`configs/base.yaml` has the defaults of these keys; below are those of the classes.",
        "",
    ]
    for name, target in SETTINGS.items():
        lines += [f"### {name}", "", f"`{target}`", "", *table(parameters(target)), ""]
    seen: set[str] = set(SETTINGS.values())
    for name in GROUPS:
        lines += group(name, seen)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != page():
            print(f"{PAGE.name} is not up to date; run python scripts/make_docs.py")
            return 1
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
