"""The command that writes a new part, such as an arena or a curriculum, with its test."""

import argparse
import re
from dataclasses import dataclass
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path

from selfplay.cli.arguments import nothing_more
from selfplay.config.compose import OWN_PACKAGES, config_folder
from selfplay.errors import ConfigError, nearest

PACKAGE = "my_games"
"""Default name of the user's package."""
CONFIGS = "my_configs"
"""Default name of the user's folder of configs."""
LONGEST_NAME = 60
"""Largest number of characters of a name."""
TAKEN = frozenset(
    [
        "AgentSpec",
        "Any",
        "Arena",
        "BatchCounts",
        "ByteRenderer",
        "ClassVar",
        "Clip",
        "Curriculum",
        "Episode",
        "EpisodeSpec",
        "FixedTasks",
        "FloatVector",
        "Group",
        "GroupRelative",
        "InvalidAction",
        "LossInputs",
        "Mapping",
        "Metric",
        "Observation",
        "Path",
        "PolicyLoss",
        "Random",
        "Reference",
        "Result",
        "Role",
        "Rollout",
        "RolloutFn",
        "Sample",
        "ScriptedEngine",
        "Sequence",
        "Speech",
        "StudyMatches",
        "StudyPlayer",
        "Task",
        "Tensor",
        "Turn",
    ]
)
"""Names of classes that the templates import or define."""
YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}
"""Words that YAML reads as a value and not as a name."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of part that `selfplay new` can write."""

    groups: tuple[str, ...] = ()
    """Config groups of the part, its own first; empty for a part without a config."""
    command: str
    """Command to try the part with; `@name@`, `@package@` and `@configs@` are filled in."""


KINDS = {
    "arena": Kind(
        groups=("arena", "evaluations"),
        command="selfplay check --config-dir @configs@ arena=@name@ roles=player "
        "evaluations=@name@",
    ),
    "role": Kind(
        groups=("roles",),
        command="selfplay train --config-dir @configs@ arena=stag_hunt roles=@name@ "
        "policy=huggingface policy.model=/path/or/name learner.lr=1e-6 sampler.group_size=64 "
        "run.steps=20",
    ),
    "credit": Kind(
        groups=("credit",),
        command="selfplay train --config-dir @configs@ +experiment=tiny/kuhn credit=@name@ "
        "run.steps=20",
    ),
    "objective": Kind(
        groups=("objective",),
        command="selfplay train --config-dir @configs@ +experiment=tiny/kuhn objective=@name@ "
        "learner.mini_batches=4 run.steps=20",
    ),
    "curriculum": Kind(
        groups=("curriculum",),
        command="selfplay train --config-dir @configs@ +experiment=tiny/tools curriculum=@name@ "
        "run.steps=20",
    ),
    "sampler": Kind(
        groups=("sampler",),
        command="selfplay train --config-dir @configs@ +experiment=tiny/tools sampler=@name@ "
        "run.steps=20",
    ),
    "measure": Kind(command="python -m @package@.@name@ runs/NAME"),
}
"""The kinds by name."""


def new(options: argparse.Namespace, rest: list[str]) -> None:
    """Write the files of a new part into the current folder, and print what to run next."""
    nothing_more(rest, options)
    if options.kind not in KINDS:
        raise ConfigError(f"new: no kind {options.kind!r}; {nearest(options.kind, KINDS)}")
    _check_name(options.part, "NAME")
    _check_name(options.package, "--package")
    _check_name(options.configs, "--configs")
    for folder in (options.package, options.configs):
        if folder in OWN_PACKAGES:
            raise ConfigError(f"new: {folder} is a package of the library; choose another folder")
    if options.package == options.configs:
        raise ConfigError("new: --package and --configs are the same folder; choose two folders")
    for group in KINDS[options.kind].groups:
        if (config_folder() / group / f"{options.part}.yaml").exists():
            raise ConfigError(f"new: the library has {group}={options.part}; choose another name")
    if _names(options.part, options.package, options.configs)["@Class@"] in TAKEN:
        raise ConfigError(
            f"new: {options.part!r} is the name of a class of the library; choose another name"
        )
    texts = written(options.kind, options.part, package=options.package, configs=options.configs)
    for path in texts:
        if path.exists():
            raise ConfigError(f"new: {path} exists; choose another name or remove it")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    command = KINDS[options.kind].command
    for key, value in _names(options.part, options.package, options.configs).items():
        command = command.replace(key, value)
    print(f"\nNow run:\n  python -m pytest {options.package}\n  {command}")


def written(
    kind: str, name: str, *, package: str = PACKAGE, configs: str = CONFIGS
) -> dict[Path, str]:
    """Return the files of a new part: relative path to text.

    Args:
        kind: One of `KINDS`.
        name: Module name of the part.
        package: Folder of the module and its test.
        configs: Folder of the config.
    """
    paths = {
        f"{kind}.py.txt": Path(package, f"{name}.py"),
        f"{kind}_test.py.txt": Path(package, f"test_{name}.py"),
    }
    for group in KINDS[kind].groups:
        template = f"{group}.yaml" if group == "evaluations" else f"{kind}.yaml"
        paths[template] = Path(configs, group, f"{name}.yaml")
    texts = {}
    for template, path in paths.items():
        text = files("selfplay.cli").joinpath("templates", template).read_text(encoding="utf-8")
        for key, value in _names(name, package, configs).items():
            text = text.replace(key, value)
        texts[path] = text
    return texts


def _names(name: str, package: str, configs: str) -> dict[str, str]:
    """Return the text for each placeholder of a template."""
    words = [word for word in name.split("_") if word]
    return {
        "@name@": name,
        "@Class@": "".join(word.capitalize() for word in words),
        "@title@": " ".join(words).capitalize(),
        "@package@": package,
        "@configs@": configs,
    }


def _check_name(name: str, where: str) -> None:
    """Raise ConfigError unless `name` is a valid name of a module and of a config."""
    if iskeyword(name) or name in YAML_WORDS:
        language = "Python" if iskeyword(name) else "YAML"
        raise ConfigError(
            f"new: {where} {name!r} is a word of {language}; choose another name, such as "
            f"{name}_game"
        )
    valid = re.fullmatch(r"[a-z][a-z0-9_]*", name) and len(name) <= LONGEST_NAME
    if not valid or name.startswith("test_"):
        raise ConfigError(
            f"new: {where} {name[:LONGEST_NAME]!r} is not valid: use at most {LONGEST_NAME} lower "
            "case letters, digits and _, a letter first, such as rock_paper_scissors"
        )
