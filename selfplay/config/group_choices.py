"""Overrides that replace the config of a group, and an experiment's settings for that group.

An experiment chooses `credit: dr_grpo` and sets `credit: {group_by: agent}`. An override
`credit=rae` chooses another method, which has no such setting. The experiment's settings below that
group were meant for the experiment's own choice, so they are dropped, and one line names them.

An override `algorithm=dapo` means the choices in that algorithm's config: `credit=grpo`,
`objective=dapo` and so on. Another override for one of these groups has priority.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from selfplay.config.composition import chosen, compose, parse, search_path
from selfplay.config.instantiate import TARGET

Report: TypeAlias = Callable[[str], object]
"""Function that shows one line to the user."""
NOTHING = "none"
"""Name of the config that leaves a group empty."""
ALGORITHM = "algorithm"
"""Group of configs that choose credit, objective and sampler together."""
METHOD = ("credit", "objective")
"""Groups in which a new algorithm drops all settings of an experiment."""
OVERRIDE = re.compile(r"override\s+/?([\w/]+)")
"""Pattern of a key in a defaults list that chooses another config for a group."""
COMPOSED = re.compile(r"^(defaults:|#\s*@package\s)", re.MULTILINE)
"""Pattern of a line in a config that consists of other configs, or whose keys go elsewhere."""


@dataclass(frozen=True, kw_only=True)
class ConfigChoice:
    """A config that an override chooses for a group."""

    group: str
    """Path of the group, such as credit or collapse/rules."""
    name: str
    """Name of the config."""
    override: str
    """Text of the override."""
    implied: bool = False
    """True for a choice made by an algorithm's config; `override` is then the algorithm's."""

    @property
    def key(self) -> str:
        """Key of the group in the config, such as collapse.rules."""
        return self.group.replace("/", ".")


@contextmanager
def without_settings_of_others(
    home: Path, name: str, overrides: Sequence[str], *, search: Sequence[Path], report: Report
) -> Iterator[Path]:
    """Yield the folder to compose from, without the experiments' settings that do not fit.

    It is `home` itself if nothing has to be dropped. Otherwise it is a temporary folder with
    the primary config and the changed experiments, which is searched before `home`.

    Args:
        home: Folder of the primary config.
        name: Name of the primary config.
        overrides: Overrides of the command line, including the search path.
        search: Folders that `overrides` add to `home` in the search for groups.
        report: Called with one line for each override that drops settings of an experiment.
    """
    changed = _changed(home, name, overrides, [home, *search], report)
    if not changed:
        yield home
        return
    with TemporaryDirectory(prefix="selfplay-") as place:
        folder = Path(place)
        (folder / f"{name}.yaml").write_bytes((home / f"{name}.yaml").read_bytes())
        for path, text in changed.items():
            file = folder / f"{path}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        yield folder


def with_choices_of_algorithm(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return the overrides, preceded by the choices that `algorithm=NAME` means.

    Overrides have priority over the choices of an experiment, so that the algorithm of the command
    line is used completely.

    Args:
        overrides: Overrides of the command line.
        folders: Folders of groups.
    """
    implied = [each for each in _choices(overrides, folders) if each.implied]
    return [*(f"{each.group}={each.name}" for each in implied), *overrides]


def keys_of(override: str, folders: Sequence[Path]) -> list[str]:
    """Return the keys of the config that `credit=rloo` or `algorithm=rloo` sets."""
    return [each.key for each in _choices([override], folders) if each.group != ALGORITHM]


def _choices(overrides: Sequence[str], folders: Sequence[Path]) -> list[ConfigChoice]:
    """Return the choices of the overrides and of the chosen algorithm."""
    found = [each for text in overrides if (each := _choice(text, folders)) is not None]
    taken = {each.group for each in found}
    implied = [
        ConfigChoice(group=group, name=name, override=each.override, implied=True)
        for each in found
        if each.group == ALGORITHM
        for group, name in _chosen_by(_file(f"{ALGORITHM}/{each.name}", folders)).items()
        if group not in taken
    ]
    return [*found, *implied]


def _chosen_by(file: Path | None) -> dict[str, str]:
    """Return the choices of an algorithm's config: group to name; none if there is no such file."""
    if file is None:
        return {}
    with suppress(OmegaConfBaseException, YAMLError, ValueError):
        # The composition itself reports a file that cannot be read.
        body = _plain(OmegaConf.load(file))
        listed = body.get("defaults", ()) if isinstance(body, Mapping) else ()
        return {
            matched.group(1): name
            for each in listed
            if isinstance(each, Mapping)
            for key, name in each.items()
            if (matched := OVERRIDE.fullmatch(str(key))) and isinstance(name, str)
        }
    return {}


def _changed(
    home: Path, name: str, overrides: Sequence[str], folders: Sequence[Path], report: Report
) -> dict[str, str]:
    """Return the experiments and algorithms that must change, as path to new text."""
    choices = _choices(overrides, folders)
    algorithm = next((each.name for each in choices if each.group == ALGORITHM), None)
    if not choices or not (algorithm or any(text.startswith("+") for text in overrides)):
        return {}
    rest = [text for text in overrides if text not in [each.override for each in choices]]
    with suppress(HydraException, OmegaConfBaseException, ValueError):
        # The composition itself reports a config that cannot be composed.
        found = _found(home, name, rest, overrides)
        before = dict(_last_of_groups(found))
        paths = [
            path
            for path, package in found
            if package in ("", "_global_") and path != name
            if path.rpartition("/")[0] not in [each.group for each in choices]
        ]
        files = {path: file for path in paths if (file := _file(path, folders)) is not None}
        bodies = {path: OmegaConf.load(file) for path, file in files.items()}
        new = any(each.implied and before.get(each.group) != each.name for each in choices)
        left: dict[str, str] = {}
        recipes = {path: body for path, body in bodies.items() if path.startswith("recipe/")}
        for choice in choices:
            changed = bodies
            if choice.implied and new and choice.group in METHOD:
                # What a recipe needs for its machines, it needs with another algorithm too.
                of_recipes, old = _settings(recipes, choice), before.get(choice.group)
                if of_recipes and (old == choice.name or _fits(choice, old, of_recipes, folders)):
                    changed = {path: body for path, body in bodies.items() if path not in recipes}
            else:
                kept = choice.implied or choice.name != NOTHING
                if before.get(choice.group) == choice.name and kept:
                    continue
                whose = _settings(bodies, choice)
                if not whose:
                    continue
                of_algorithm = any(path.startswith(f"{ALGORITHM}/") for path in whose)
                if not of_algorithm and _fits(choice, before.get(choice.group), whose, folders):
                    continue
            left |= _without(choice, changed, files, report)
        if algorithm and (file := _file(f"{ALGORITHM}/{algorithm}", folders)):
            chosen_there = _chosen_by(file)
            mine = {f"{ALGORITHM}/{algorithm}": OmegaConf.load(file)}
            for choice in choices:
                if not choice.implied and chosen_there.get(choice.group) != choice.name:
                    left |= _without(choice, mine, dict.fromkeys(mine, file), report)
        return left
    return {}


def _settings(bodies: Mapping[str, Any], choice: ConfigChoice) -> dict[str, DictConfig]:
    """Return the settings below the key of a choice, by the path of their config."""
    return {
        path: settings
        for path, body in bodies.items()
        if isinstance(body, DictConfig)
        if isinstance(settings := OmegaConf.select(body, choice.key), DictConfig)
        if settings
    }


def _without(
    choice: ConfigChoice, bodies: Mapping[str, Any], files: Mapping[str, Path], report: Report
) -> dict[str, str]:
    """Drop and report the settings below the key of a choice; return path to new text."""
    left = {}
    for path, settings in _settings(bodies, choice).items():
        keys = [f"{choice.key}.{key!s}" for key in settings]
        group, _, whose = path.partition("/")
        report(
            f"{group} {whose}'s {', '.join(keys)} {'is' if len(keys) == 1 else 'are'} dropped: "
            f"{choice.override} was chosen"
        )
        _take_out(bodies[path], choice.key)
        left[path] = _text(files[path], bodies[path])
    return left


def _found(
    home: Path, name: str, rest: Sequence[str], overrides: Sequence[str]
) -> list[tuple[str, str]]:
    """Compose the configs without the new choices, or with them if a config needs a choice."""
    try:
        return chosen(home, name, rest)
    except (HydraException, OmegaConfBaseException, ValueError):
        return chosen(home, name, overrides)


def _choice(text: str, folders: Sequence[Path]) -> ConfigChoice | None:
    """Return the config that an override chooses for a group, None for another override."""
    parsed = parse(text)
    group, value = parsed.key_or_group, parsed.value() if not parsed.is_sweep_override() else None
    if parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.package:
        return None
    if not isinstance(value, str) or not any((place / group).is_dir() for place in folders):
        return None
    return ConfigChoice(group=group, name=value, override=text)


def _last_of_groups(found: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Return (group, name) for each group of the primary config, with the chosen config."""
    for path, package in found:
        group, _, name = path.rpartition("/")
        # A config included by another one has the package of that one's key, not of its own group.
        if package in ("", "_global_") or package == group.replace("/", "."):
            yield group, name


def _file(path: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        with suppress(OSError):  # for a name that is too long for a file
            if (file := folder / f"{path}.yaml").is_file():
                return file
    return None


def _fits(
    choice: ConfigChoice,
    before: str | None,
    whose: Mapping[str, DictConfig],
    folders: Sequence[Path],
) -> bool:
    """Return True if the settings of an experiment fit the config that the override chooses.

    They fit if the old and the new config build the same classes wherever there are settings.
    `population=separate` and `population=shared` build the same class with different settings;
    `credit=rae` and `credit=dr_grpo` build different classes.
    """
    if choice.name == NOTHING or before is None:
        return False
    old, new = (_node(choice, each, folders) for each in (before, choice.name))
    return all(_same_classes(_plain(settings), old, new) for settings in whose.values())


def _node(choice: ConfigChoice, name: str, folders: Sequence[Path]) -> Any:
    """Return the values of the config `name` of the choice's group, interpolations unresolved."""
    file = _file(f"{choice.group}/{name}", folders)
    if file is not None and not COMPOSED.search(file.read_text(encoding="utf-8")):
        return _plain(OmegaConf.load(file))  # a tenth of the time of a composition
    with TemporaryDirectory(prefix="selfplay-") as place:
        Path(place, "alone.yaml").write_text(f"defaults: [{choice.group}: {name}]\n")
        composed = compose(Path(place), "alone", search_path(folders))
    return _plain(OmegaConf.select(composed, choice.key))


def _plain(node: Any) -> Any:
    if OmegaConf.is_config(node):
        return OmegaConf.to_container(node, resolve=False, throw_on_missing=False)
    return node


def _same_classes(settings: Any, old: Any, new: Any, *, inside: bool = False) -> bool:
    """Return True if two configs have the same classes at every level that the settings reach.

    `inside` is True for a level that belongs to a class. Plain settings outside of all classes,
    such as the model of a policy, differ between the configs of a group, so they never fit.
    """
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return False
    if old.get(TARGET) != new.get(TARGET) or TARGET in settings:
        return False
    inside = inside or TARGET in old
    for key, value in settings.items():
        deeper = isinstance(value, Mapping) and isinstance(old.get(key), Mapping)
        if deeper and (old[key] or new.get(key)):
            if not _same_classes(value, old[key], new.get(key), inside=inside):
                return False
        elif not inside or (key in old) != (key in new):
            return False
    return True


def _take_out(body: Any, key: str) -> None:
    """Remove a key with its settings."""
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(body, parent) if parent else body
    del node[last]


def _text(file: Path, body: Any) -> str:
    """Return a config's YAML with the comment that names its package."""
    lines = file.read_text(encoding="utf-8").splitlines()
    header = [line for line in lines if re.match(r"#\s*@package\s", line)]
    return "\n".join([*header, OmegaConf.to_yaml(body)])
