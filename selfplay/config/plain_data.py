"""Checks of a config as plain data: files that are safe to read, all keys, and valid values."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from selfplay.config.instantiate import TARGET, check, convert
from selfplay.errors import ConfigError, nearest
from selfplay.rng import check_seed

LOCAL_DEFAULTS = {
    "engine": "selfplay.engines.transformers.TransformersEngine",
    "runtime": "selfplay.runtime.local.Local",
}
"""Targets of the keys `engine` and `runtime` that need no other machine and no extra package."""
OBJECTS = (
    "run",
    "arena",
    "curriculum",
    "population",
    "sampler",
    "credit",
    "objective",
    "collapse",
    *LOCAL_DEFAULTS,
)
"""Keys with one node that has a `_target_`."""
COLLECTIONS = ("services", "roles", "shaping", "trackers")
"""Keys with a node per name that has a `_target_`."""
SETTINGS = (
    "policy",
    "warmstart",
    "evaluations",
    "sampling",
    "learner",
    "rollout",
)
"""Keys with plain settings of objects that the program builds itself."""
TABLES = ("evaluations", "sampling")
"""Keys with plain settings per name."""
OPTIONAL = ("league",)
"""Keys with one node that has a `_target_`, or with nothing."""
PROVIDED: Mapping[str, Sequence[str]] = {
    "credit": ("arena",),
    "league": ("arena", "population"),
    "population": ("role_names", "warmstart"),
}
"""Arguments that the program gives to the object of a key, besides the services."""
KEYS = ("seed", *OBJECTS, *OPTIONAL, *COLLECTIONS, *SETTINGS)
"""All keys that a config must have."""
GROUPS_WITH_PLUS = ("experiment", "opponents", "recipe")
"""Groups without a choice in the primary config, for which Hydra needs a plus."""
ADDED = tuple(f"+{group}" for group in GROUPS_WITH_PLUS)
"""The groups of `GROUPS_WITH_PLUS` as a command line writes them."""
REQUIRED = ("arena", "roles")
"""Keys that are empty in the primary config and that a run must set."""
SHARED = "shared"
"""Optional key for nodes to which several others refer, as in `${shared.held_out}`."""
LARGEST_FILE = 2_000_000
"""Largest number of bytes of a YAML file."""
MOST_NODES = 30_000
"""Largest number of values of a YAML file; an alias counts with all values that it repeats."""
DEEPEST = 100
"""Largest depth of nested lists and mappings."""
LONGEST_NUMBER = 100
"""Largest number of characters of a number: YAML's base 60 takes quadratic time to read."""
LONGEST_SHOWN = 60
"""Largest number of characters of a refused text that an error shows."""


REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
"""Pattern of the start of an interpolation, `${`, without an escaping backslash."""
NUMBER = re.compile(r"[-+.0-9][-+.:_0-9A-Fa-fxo]*")
"""Pattern of text that YAML may read as a number; it matches more than YAML does."""


def check_config(config: Mapping[str, Any]) -> None:
    """Check that a config has all keys, and each `_target_` node against its target.

    Raises ConfigError, in one line, for the first fault. No object is built.
    """
    for key in config:
        if key not in (*KEYS, SHARED):
            raise ConfigError(f"unknown key {key!r}; {nearest(key, [*KEYS, *ADDED])}")
    for key in KEYS:
        if key not in config:
            raise ConfigError(f"the config has no {key!r}; it needs {', '.join(KEYS)}")
        if key != "seed":
            _refuse_plain(config[key], where=key)
    check_plain(config)
    for key in (*COLLECTIONS, *TABLES):
        for name, node in config[key].items():
            _refuse_plain(node, where=f"{key}.{name}")
    try:
        check_seed(convert(int, config["seed"], where="seed"))
    except ValueError as error:
        raise ConfigError(f"seed: {error}") from error
    for key, node in config.items():
        check(node, where=key, provided=("seed", *config["services"], *PROVIDED.get(key, ())))
    refuse_unchosen(config)
    if "default" not in config["sampling"]:
        raise ConfigError("sampling.default: missing; it limits the answers of all other roles")
    for key in (*OBJECTS, *OPTIONAL):
        if config[key] or key in OBJECTS:
            _refuse_targetless(config[key], where=key)
    for key in COLLECTIONS:
        for name, node in config[key].items():
            _refuse_targetless(node, where=f"{key}.{name}")
    for name, node in config["evaluations"].items():
        _refuse_targetless(node.get("arena"), where=f"evaluations.{name}.arena")


def refuse_unchosen(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the config has no arena or no roles, such as the primary config."""
    if not config["arena"]:
        raise ConfigError(
            "no arena is chosen; add an experiment, such as +experiment=tiny/quickstart, or choose "
            "arena=NAME and roles=NAME"
        )
    if not config["roles"]:
        raise ConfigError("no roles are chosen; choose roles=NAME, or an experiment")


def _refuse_plain(node: Any, *, where: str) -> None:
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where}: {node!r} does not fit: needs keys and values")


def _refuse_targetless(node: Any, *, where: str) -> None:
    if not isinstance(node, Mapping) or TARGET not in node:
        raise ConfigError(f"{where}.{TARGET}: missing; set it to the class to build")


def check_expansion(path: Path, *, resolved: bool = False) -> None:
    """Raise ConfigError for a YAML file that would exhaust the memory of its reader.

    A few lines of aliases can expand to billions of values, an alias can refer to a value that
    contains it, and deep nesting causes a stack overflow. The file is only scanned here: its
    values are not built. Raises `yaml.YAMLError` if the file is not YAML.

    Args:
        path: Path of the file.
        resolved: True if the file must contain plain values, such as the config of a run.
            Interpolations are then refused: they can expand like aliases, and can read the
            environment variables of the user who opens the run.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: not a regular file; name a config file")
    if path.stat().st_size > LARGEST_FILE:
        raise ConfigError(f"{path}: larger than {LARGEST_FILE:,} bytes, the maximum for configs")
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # (anchor, values before)
    count = 0
    with path.open("rb") as file:
        for event in yaml.parse(file, Loader=yaml.SafeLoader):
            at = f"{path}, line {event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent):
                if any(anchor == event.anchor for anchor, _ in open_nodes):
                    raise ConfigError(f"{at}: *{event.anchor} refers to the value that contains it")
                count += sizes.get(event.anchor, 1)
            elif isinstance(event, yaml.ScalarEvent):
                count += 1
                plain = event.implicit[0]
                if plain and len(event.value) > LONGEST_NUMBER and NUMBER.fullmatch(event.value):
                    raise ConfigError(
                        f"{at}: {_shown(event.value)} is a number of more than "
                        f"{LONGEST_NUMBER:,} characters; quote it if it is text"
                    )
                if resolved and REFERENCE.search(event.value):
                    raise ConfigError(
                        f"{at}: {_shown(event.value)} refers to another value, but the config of "
                        "a run must contain plain values; write the value itself"
                    )
                if event.anchor:
                    sizes[event.anchor] = 1
            elif isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count))
                count += 1
                if len(open_nodes) > DEEPEST:
                    raise ConfigError(f"{at}: the values are nested more than {DEEPEST} deep")
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_nodes.pop()
                if anchor:
                    sizes[anchor] = count - before
            if count > MOST_NODES:
                raise ConfigError(
                    f"{at}: with expanded aliases the file has more than {MOST_NODES:,} "
                    "values, the maximum for configs"
                )


def check_folder_sizes(folder: Path) -> None:
    """Raise ConfigError for the first YAML file of a config folder that `check_expansion`
    refuses.

    It reads the folders of config groups: the folder and two levels below it. A file that is not
    YAML is ignored here, because the config may never use it.
    """
    for pattern in ("*.yaml", "*/*.yaml", "*/*/*.yaml"):
        for path in sorted(folder.glob(pattern)):
            with suppress(yaml.YAMLError):
                check_expansion(path)


def check_text(text: str, *, what: str) -> None:
    """Raise ConfigError for text that a file name or a UTF-8 file cannot contain.

    Args:
        text: The text. An argument that is not UTF-8 reaches Python with lone surrogates.
        what: Location of the text, for the error.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = _shown(text)
        raise ConfigError(f"{what}: {shown} does not fit: it is not valid UTF-8") from error
    if "\0" in text:
        raise ConfigError(f"{what}: {_shown(text)} does not fit: it contains the character NUL")


def check_plain(node: Any) -> None:
    """Raise ConfigError, with the key, for the first value that is invalid in any setting.

    Invalid are NaN, which passes checks by comparison, and text that is not UTF-8 or contains NUL.
    """
    for path, value in leaves(node, ""):
        where = path or "the config"
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{where}: nan does not fit: a finite number is needed")
        if isinstance(value, str):
            check_text(value, what=where)


def leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield all keys and all single values, each with the path of its key."""
    if isinstance(node, Mapping):
        for key, inner in node.items():
            if isinstance(key, str):
                yield path, key
            name = key if isinstance(key, str) and key.isprintable() else ascii(key)
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(node, list | tuple):
        for place, inner in enumerate(node):
            yield from leaves(inner, f"{path}.{place}" if path else str(place))
    else:
        yield path, node


def _shown(text: str) -> str:
    """Return the start of a text in ASCII."""
    return ascii(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...")
