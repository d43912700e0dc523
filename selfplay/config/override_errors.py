"""Overrides that Hydra refuses: those that only lack a plus, and one-line errors for others."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from selfplay.config.group_choices import ALGORITHM
from selfplay.config.instantiate import TARGET
from selfplay.config.node_classes import signature_of
from selfplay.config.plain_data import ADDED, GROUPS_WITH_PLUS, KEYS
from selfplay.config.shipped_configs import package_of, without_package_line
from selfplay.errors import closest, nearest

Composed: TypeAlias = Callable[[Sequence[str]], DictConfig]
"""Function of overrides that returns the config with them, or with fewer if one has a fault."""
OPEN = ("roles", "services", "sampling", "evaluations", "shaping", "trackers")
"""Keys below which a config may add names of its own."""
MOST_HINTS = 3
"""Maximum number of keys that an error suggests."""


def with_plus(error: Exception, overrides: Sequence[str], composed: Composed) -> list[str] | None:
    """Return the overrides with a plus at a refused key that is a parameter of its node's class.

    The config leaves the parameter out, so that it has its default value. None for any other error.
    """
    found = re.search(r"Could not override '([^']+)'", str(error))
    if found is None:
        return None
    key = found.group(1)
    parent, _, own = key.rpartition(".")
    config = _without(key, overrides, composed)
    if _reference_above(config, key):
        return None
    if own not in signature_of(config, parent).known or key in paths(config):
        return None
    first = next((at for at, each in enumerate(overrides) if each.startswith(f"{key}=")), None)
    if first is None:
        return None
    return [*overrides[:first], f"+{overrides[first]}", *overrides[first + 1 :]]


def _without(key: str, overrides: Sequence[str], composed: Composed) -> DictConfig:
    """Return the config without the overrides that name a key."""
    return composed([override for override in overrides if key not in override])


def _reference_above(config: DictConfig, key: str) -> str:
    """Return the error line for a key below a value that refers to another key, such as
    `arena: ${arena}`; "" for other keys."""
    node: Any = OmegaConf.to_container(config, resolve=False)
    parts = key.split(".")
    for place, own in enumerate(parts[:-1], 1):
        node = node.get(own) if isinstance(node, dict) else None
        found = re.fullmatch(r"\$\{([\w.]+)\}", node) if isinstance(node, str) else None
        if found:
            above, rest = ".".join(parts[:place]), ".".join(parts[place:])
            return f"{key}: {above} is {node}; set {found[1]}.{rest}, or all of {above}"
    return ""


def below_list(overrides: Sequence[str], composed: Composed) -> str:
    """Return the error line for an override of a key below a list of the config; "" without one."""
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    chosen = [each for each, key in zip(overrides, keys, strict=True) if "." not in key]
    config = composed(chosen)
    for key in keys:
        parts = key.split(".")
        for place, own in enumerate(parts[1:], 1):
            above, node = ".".join(parts[:place]), None
            with suppress(OmegaConfBaseException):  # for a value that is not set
                node = OmegaConf.select(config, above)
            if OmegaConf.is_list(node) and not own.isdigit():
                return (
                    f"{key}: {above} is a list, which has no key {own!r}; set the whole list, such "
                    f"as '{above}=[...]'"
                )
    return ""


def refused(error: Exception, overrides: Sequence[str], composed: Composed) -> str:
    """Return the error line for an override that Hydra refused, with the nearest key."""
    text = str(error)
    if isinstance(error, InterpolationKeyError):
        return _unset(error)
    if (found := re.search(r"@(\w+)", text)) and package_of(group := found.group(1)):
        chosen = [text for text in overrides if text.lstrip("+").startswith(f"{group}=")][-1:]
        named = "".join(chosen) or f"the {group}"
        return without_package_line(named, group)
    full = re.search(r"full_key: (\S+)", text)
    found = full or re.search(r"Could not override '([^']+)'", text)
    if found and found.group(1) in GROUPS_WITH_PLUS:
        group = found.group(1)
        typed = next((text for text in overrides if text.startswith(f"{group}=")), f"{group}=NAME")
        return f"{typed}: the config has no {group} yet; add one with a plus: +{typed}"
    if found and ("is not in struct" in text or "Could not override" in text):
        key = found.group(1)
        config = _without(key, overrides, composed)
        return _reference_above(config, key) or _unknown_key(key, config)
    found = re.search(r"Could not delete from config\. '([^']+)' does not exist", text)
    if found:
        key = found.group(1)
        line = _unknown_key(key, _without(key, overrides, composed))
        if "to add" in line:
            return f"~{key}: the config has no key {key!r}; drop this, there is nothing to remove"
        return f"~{key}: {line}"
    found = re.search(r"An item is already at '([^']+)'", text)
    if found:
        return f"+{found.group(1)}: the config has this key already; write it without the plus"
    found = re.search(r"Multiple values for ([^ ]+)\. To override", text)
    found = found or re.search(r"^(\S+) appears more than once in the final defaults list", text)
    if found:
        group = found.group(1)
        if group in GROUPS_WITH_PLUS:
            return f"+{group}: given more than once; keep one"
        return f"+{group}: the config chooses one already; write {group}=NAME without the plus"
    found = re.search(r"No match in the defaults list.*'\+?([^']+)'", text)
    if found:
        group = found.group(1).partition("=")[0]
        return f"unknown key {group!r}; {nearest(group, [*KEYS, ALGORITHM, *ADDED])}"
    if isinstance(error, ConfigCompositionException) and error.__cause__:
        return f"{first_lines(error)} ({first_lines(error.__cause__)})"
    return first_lines(error)


def _unset(error: InterpolationKeyError) -> str:
    """Return the error line for a value such as ${curriculum.tasks} whose key is not in the
    config."""
    named = re.search(r"Interpolation key '([^']+)' not found", str(error))
    if named is None or not error.full_key:
        return first_lines(error)
    key = str(error.full_key)
    return f"{key}: its value ${{{named.group(1)}}} is not set; set {key}"


def _unknown_key(key: str, config: DictConfig) -> str:
    """Return the error line for an unknown key, with the nearest key of the same node.

    `config` is the config without the overrides that name the key.
    """
    known = list(paths(config))
    if key in known:
        return f"{key}: to add new keys to it, write +{key}=..."
    if below := [path for path in known if path.endswith(f".{key}")]:
        nearby = sorted(below, key=lambda path: (path.count("."), path))[:MOST_HINTS]
        return f"unknown key {key!r}; did you mean {' or '.join(map(repr, nearby))}?"
    parent, siblings = key, list[str]()
    while parent and not siblings:
        parent, _, own = parent.rpartition(".")
        prefix = f"{parent}." if parent else ""
        inside = [path.removeprefix(prefix) for path in known if path.startswith(prefix)]
        siblings = [name for name in inside if "." not in name and name != TARGET]
        siblings += [] if parent else [ALGORITHM, *ADDED]
        taken = signature_of(config, parent).known
        value = OmegaConf.select(config, parent, throw_on_resolution_failure=False)
        if isinstance(value, str | int | float):
            return f"unknown key {key!r}; {parent} is a value ({value}) and has no keys"
        # An empty mapping, such as population.overrides, or a parameter that the file leaves out.
        if own in taken or (parent in known and not inside):
            return f"unknown key {key!r}; to add it, write +{key}=..."
        siblings += [name for name in taken if name not in siblings]
        if parent in known and not siblings:
            return f"unknown key {key!r}; {parent} takes no settings"
    rest_of_key = key.removeprefix(prefix + own)
    meant = f"{prefix}{closest(own, siblings)}{rest_of_key}"
    if rest_of_key and meant in known:
        return f"unknown key {key!r}; did you mean {meant!r}?"
    hint = nearest(own, siblings, prefix)
    # A new node of a class needs all of its keys, which one override with a plus does not add.
    whole = rest_of_key and any(signature_of(config, f"{prefix}{name}").needed for name in siblings)
    if parent in OPEN and not whole and not hint.startswith("did you mean"):
        hint = f"to add it, write +{key}=..."
    return f"unknown key {key!r}; {hint}"


def paths(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every node below a config's node, such as learner.lr."""
    if isinstance(node, DictConfig):
        for key in node:
            path = f"{prefix}.{key!s}" if prefix else str(key)
            yield path
            yield from paths(node._get_node(key), path)


def first_lines(error: BaseException) -> str:
    """Return an error's first line, and the second line if the first one ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else type(error).__name__
