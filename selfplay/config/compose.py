"""Composition of a config with Hydra, and one-line errors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from selfplay.config import trust
from selfplay.config.composition import SINGLE, chosen, compose, parse, search_path
from selfplay.config.group_choices import (
    ALGORITHM,
    Report,
    keys_of,
    with_choices_of_algorithm,
    without_settings_of_others,
)
from selfplay.config.instantiate import TARGET
from selfplay.config.override_errors import below_list, first_lines, paths, refused, with_plus
from selfplay.config.plain_data import (
    KEYS,
    LOCAL_DEFAULTS,
    REQUIRED,
    check_expansion,
    check_folder_sizes,
)
from selfplay.config.template_files import with_texts
from selfplay.errors import ConfigError, nearest

RUN = "config"
"""Name of the primary config of a run folder, in which all values are resolved."""
BASE = "base"
"""Name of the primary config that experiments and overrides change."""
UNNAMED = "train"
"""`run.experiment` of a config that gives none; the chosen experiment's name replaces it."""
NESTED = ("experiment",)
"""Groups whose configs are in subfolders, such as experiment/tiny/kuhn.yaml."""
OWN_PACKAGES = ("selfplay", "roles", "arenas", "configs")
"""Names of this project's packages."""


def check_package_names() -> None:
    """Raise ConfigError if another package has the name of one of this project's packages.

    The project's packages are in one folder, in a clone, an editable install and a wheel.
    """
    home = Path(__file__).resolve().parent.parent.parent
    for name in OWN_PACKAGES:
        found = find_spec(name)
        if found is None:
            raise ConfigError(f"there is no package {name!r} in {home}; install selfplay again")
        origin = found.origin or f"{next(iter(found.submodule_search_locations or ()))}/__init__.py"
        folder = Path(origin).resolve().parent
        if folder != home / name:
            raise ConfigError(
                f"the package {name!r} in {folder.parent} hides the one that selfplay needs from "
                f"{home}; rename your own package: selfplay, roles, arenas and configs are "
                "reserved names"
            )


def config_folder() -> Path:
    """Return the folder of the shipped configs, in a clone, an editable install and a wheel."""
    with as_file(files("configs")) as folder:
        return Path(folder)


def load(
    overrides: Sequence[str],
    *,
    name: str = BASE,
    folder: Path | None = None,
    search: Sequence[str] = (),
    report: Report = lambda line: None,
) -> dict[str, Any]:
    """Return the composed and resolved config as plain data.

    Args:
        overrides: Hydra overrides, such as `+experiment=tiny/quickstart` and `seed=1`.
        name: Primary config.
        folder: Folder of the primary config; None: the shipped one. A run folder repeats the run.
        search: More folders with config groups.
        report: Called with one line per experiment whose settings are dropped because
            `overrides` choose another config for their group.
    Raises:
        ConfigError: In one line, with the nearest valid choice.
    """
    check_package_names()
    home = (folder or config_folder()).resolve()
    if not (home / f"{name}.yaml").is_file():
        raise ConfigError(f"no {name}.yaml in {home}; give --config-path a run or config folder")
    _refuse_overrides(overrides, [home, *map(Path, search)])
    try:
        check_expansion(home / f"{name}.yaml", resolved=name == RUN)
        for place in [*([folder] if folder else []), *map(Path, search)]:
            check_folder_sizes(place)
        if folder is not None:
            trust.admit_file(home / f"{name}.yaml")  # builds the values, so the checks come first
        _refuse_hidden(home, name, overrides, search)
        composed = _compose(home, name, overrides, search, report)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingConfigException as error:
        raise ConfigError(_missing(error, search)) from error
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(f"{key}: missing; set {key}=VALUE") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        composed_with = partial(_composed, home, name, search=search)
        unreadable = isinstance(error, ValueError) or "is not an int" in str(error.__cause__)
        if unreadable and (line := below_list(overrides, composed_with)):
            raise ConfigError(line) from error
        if not isinstance(error, HydraException | OmegaConfBaseException):
            # A ValueError of Hydra, such as for a group that is set to null.
            raise ConfigError(first_lines(error)) from error
        if added := with_plus(error, overrides, composed_with):
            # `report` has had its lines.
            return load(added, name=name, folder=folder, search=search)
        raise ConfigError(refused(error, overrides, composed_with)) from error
    except RecursionError as error:
        raise ConfigError(f"{home / name}.yaml: a value contains itself") from error
    except YAMLError as error:
        place_of = getattr(error, "problem_mark", None)
        at = f"{place_of.name}, line {place_of.line + 1}" if place_of else str(home)
        raise ConfigError(f"{at}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{home / name}.yaml: needs keys and values")
    if folder is not None:
        trust.admit_config(plain)
    whole = {str(key): value for key, value in plain.items()}
    settings = whole if name == RUN else with_texts(whole)
    _refuse_empty(overrides, settings)
    if name == RUN:
        _refuse_unread(overrides, settings)
    run, chosen = settings.get("run"), [o for o in overrides if o.startswith("+experiment=")]
    if chosen and isinstance(run, dict) and run.get("experiment") == UNNAMED:
        run["experiment"] = chosen[-1].partition("=")[2]
    return settings


def _compose(
    home: Path,
    name: str,
    overrides: Sequence[str],
    search: Sequence[str],
    report: Report = lambda line: None,
) -> DictConfig:
    """Compose the config without the experiments' settings that new choices replace."""
    given = [*overrides, *_search_path(search)]
    folders = [Path(place) for place in search]
    with without_settings_of_others(home, name, given, search=folders, report=report) as place:
        whole = with_choices_of_algorithm(overrides, [home, *folders])
        if place == home:
            return compose(home, name, [*whole, *_search_path(search)])
        return compose(place, name, [*whole, *_search_path([str(home), *search])])


def _composed(home: Path, name: str, overrides: Sequence[str], search: Sequence[str]) -> DictConfig:
    """Compose the config; if an override has a fault, only with the overrides that choose a config
    or begin with a plus, or with none."""
    for given in (
        overrides,
        [each for each in overrides if each[:1] == "+" or "." not in each.partition("=")[0]],
    ):
        with suppress(HydraException, OmegaConfBaseException, ValueError):
            return _compose(home, name, given, search)
    return compose(home, name, [])


def _refuse_hidden(home: Path, name: str, overrides: Sequence[str], search: Sequence[str]) -> None:
    """Raise ConfigError for a chosen config that `home` and one of the folders `search` both have.

    The run would take the file of `home`, and ignore the other one without a word.
    """
    if name == RUN or not search:
        return
    folders = [Path(place) for place in search]
    hidden = {
        path.relative_to(home).with_suffix("").as_posix(): folder / path.relative_to(home)
        for path in home.glob("*/**/*.yaml")
        for folder in reversed(folders)
        if folder.resolve() != home and (folder / path.relative_to(home)).is_file()
    }
    if not hidden:
        return
    whole = with_choices_of_algorithm(overrides, [home, *folders])
    for path, _ in chosen(home, name, [*whole, *_search_path(search)]):
        if path in hidden:
            group, _, config = path.partition("/")
            owner = "the library" if home == config_folder().resolve() else str(home)
            raise ConfigError(
                f"{group}={config}: {hidden[path]} has the name of a config of {owner}, which "
                "would be taken instead; rename it"
            )


def _refuse_overrides(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise ConfigError for the first override that is certainly a mistake."""
    for text in overrides:
        parsed = parse(text)
        group = parsed.key_or_group
        if parsed.is_sweep_override() and group in SINGLE:
            raise ConfigError(
                f"{text}: commas separate the values of a sweep, and a run has one {group}; write "
                f"it without commas, or in quotes: '{group}=\"...\"'"
            )
        if parsed.is_sweep_override():
            raise ConfigError(
                f"{text}: several values for one run; add -m for one run per value, or write "
                f"{group}=[...] for a list"
            )
        if parsed.is_delete() or not any((folder / group).is_dir() for folder in folders):
            continue
        value = parsed.value()
        named = value if isinstance(value, list) else [value]
        if not isinstance(value, Mapping) and not all(isinstance(each, str) for each in named):
            raise ConfigError(
                f"{text}: {group} takes the name of a config; {nearest(str(value), choices(group))}"
            )


def _refuse_empty(overrides: Sequence[str], plain: Mapping[str, Any]) -> None:
    """Raise ConfigError for an override with {}, which changes nothing if the key has settings."""
    for text in overrides:
        parsed = parse(text)
        if parsed.is_delete() or parsed.value() != {}:
            continue
        key = parsed.key_or_group.replace("/", ".")
        node: Any = plain
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and node:
            known = choices(parsed.key_or_group)
            optional = "none" in known and key not in REQUIRED
            none = [f"choose {key}=none"] if optional else []
            other = none or ([f"choose a config, such as {key}={known[0]}"] if known else [])
            advice = ", or ".join([*other, f"remove single keys with ~{key}.{next(iter(node))}"])
            raise ConfigError(
                f"{text}: does not empty {key}, because {{}} adds nothing to its settings; {advice}"
            )


def load_changed(
    folder: Path, overrides: Sequence[str], *, search: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a run's config with overrides.

    A run folder has no config groups, so an override such as `credit=rloo` replaces the run's
    settings by the shipped config, or by that of one of the folders `search`. Where this config
    refers to other keys, such as `${arena}`, it gets the run's values.

    Args:
        folder: The run folder.
        overrides: Overrides of the command line.
        search: More folders with config groups.
    Raises:
        ConfigError: In one line, with the nearest valid choice.
    """
    plain = load([], name=RUN, folder=folder)
    if not overrides:
        return plain
    rest, chosen = list[str](), dict[str, Any]()
    for override in overrides:
        group, _, name = override.partition("=")
        if group in (*KEYS, ALGORITHM) and choices(group, search) and name.isidentifier():
            found = _unresolved(override, search)
            folders = [config_folder(), *map(Path, search)]
            chosen |= {key: found[key] for key in keys_of(override, folders)}
        else:
            rest.append(override)
    plain |= _resolved_in(plain, chosen)
    with TemporaryDirectory() as place:
        Path(place, "config.yaml").write_text(to_yaml(plain), encoding="utf-8")
        return load(rest, name=RUN, folder=Path(place))


def _unresolved(override: str, search: Sequence[str]) -> dict[str, Any]:
    """Return the base config with one choice of a group, with its interpolations."""
    home = config_folder()
    _refuse_overrides([override], [home, *map(Path, search)])
    for folder in search:
        check_folder_sizes(Path(folder))
    try:
        _refuse_hidden(home, BASE, [override], search)
        composed = _compose(home, BASE, [override], search)
    except (HydraException, OmegaConfBaseException, ValueError):
        load([override], search=search)  # raises the error in one line
        raise
    plain = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _resolved_in(run: Mapping[str, Any], nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nodes of a config whose interpolations refer to the keys of a run's config."""
    if not nodes:
        return {}
    population = run.get("population")
    policy = population.get("policy") if isinstance(population, Mapping) else None
    known = {**run, **({"policy": policy} if policy else {})}
    try:
        whole = OmegaConf.create({**_escaped(known), **nodes})
        plain = OmegaConf.to_container(whole, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: missing; set {error.full_key}=VALUE") from error
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{error.full_key}: it refers to a key that the run's config does not have "
            f"({first_lines(error)}); choose another config"
        ) from error
    assert isinstance(plain, dict)
    return with_texts({key: plain[key] for key in nodes})


def with_local_runtime(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config for commands that open a finished run.

    Engine and runtime are local, there are no trackers, and the attention kernel is the default,
    because nothing is trained.
    """
    nodes = {
        key: config[key] if _target_of(config.get(key)) == name else {TARGET: name}
        for key, name in LOCAL_DEFAULTS.items()
    }
    settings = ("learner", "population")
    plain = {k: _any_kernel(config[k]) for k in settings if k in config}
    return {**config, **nodes, **plain, "trackers": {}}


def _target_of(node: Any) -> Any:
    return node.get(TARGET) if isinstance(node, Mapping) else None


def _any_kernel(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    return {key: None if key == "attention" else _any_kernel(each) for key, each in node.items()}


def check_folders(folders: Sequence[str]) -> None:
    """Raise ConfigError for a folder of configs that does not exist."""
    for folder in folders:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")


def _search_path(folders: Sequence[str]) -> list[str]:
    check_folders(folders)
    return search_path([Path(folder) for folder in folders])


def groups(search: Sequence[str] = ()) -> list[str]:
    """Return the names of all config groups; raise ConfigError for a folder that does not exist."""
    check_folders(search)
    folders = [config_folder(), *map(Path, search)]
    places = [place for folder in folders if folder.is_dir() for place in folder.iterdir()]
    return sorted({place.name for place in places if any(_configs(place))})


def choices(group: str, search: Sequence[str] = ()) -> list[str]:
    """Return the configs of a group, such as rloo of credit and tiny/kuhn of experiment."""
    return list(files_of(group, search))


def files_of(group: str, search: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files of a group's configs by name, such as tiny/kuhn of experiment.

    If several folders have a file of the same name, the result has that of the first one. A run
    refuses the name of a shipped file for a file of another folder.
    """
    places = [folder / group for folder in (config_folder(), *map(Path, search))]
    found: dict[str, Path] = {}
    for place in places:
        for path in _configs(place):
            found.setdefault(path.relative_to(place).with_suffix("").as_posix(), path)
    return dict(sorted(found.items()))


def _configs(place: Path) -> Iterator[Path]:
    """Yield the config files in a group's folder."""
    return place.glob("**/*.yaml" if place.name in NESTED else "*.yaml")


def default_keys() -> list[str]:
    """Return every key of the default config, such as learner.lr."""
    return sorted(paths(compose(config_folder(), BASE, [])))


def to_yaml(config: Mapping[str, Any]) -> str:
    """Return a resolved config as YAML from which `load` reads the same values."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(config)))


def _escaped(value: Any) -> Any:
    """Return `value` with each `${` escaped, so that it is text and no interpolation."""
    if isinstance(value, Mapping):
        return {key: _escaped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(inner) for inner in value]
    if isinstance(value, str):
        # Backslashes before an interpolation escape it, so they have to be escaped too.
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def _refuse_unread(overrides: Sequence[str], config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a change of `policy` in the config of a run, because nothing reads it.

    In the shipped configs `population.policy` refers to `policy`; in the config of a run it has the
    settings themselves.
    """
    population = config.get("population")
    if not isinstance(population, Mapping) or "policy" not in population:
        return
    for override in overrides:
        sign = override[: len(override) - len(override.lstrip("+~"))]
        if re.match(r"policy[.=]", override.removeprefix(sign)):
            raise ConfigError(
                f"{override}: nothing reads policy in the config of a run; write "
                f"{sign}population.{override.removeprefix(sign)}"
            )


def _missing(error: MissingConfigException, search: Sequence[str]) -> str:
    missing = str(error.missing_cfg_file or "").lstrip("/")
    first = missing.partition("/")[0]
    group, _, name = missing.partition("/") if first in NESTED else missing.rpartition("/")
    if not group:
        return first_lines(error)
    known = choices(group, search)
    if not known:
        return f"no group {group!r}; {nearest(group, groups(search))}"
    hint = nearest(name, known)
    more = f"; selfplay list {group} shows all" if hint.endswith(", ...") else ""
    if not search and hint.startswith("choose from"):
        hint += "; --config-dir FOLDER adds configs of your own"
    return f"no {group} named {name!r}; {hint}{more}"
