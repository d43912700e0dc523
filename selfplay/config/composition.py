"""Calls to Hydra: parsing of overrides, composition, and the list of chosen configs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from selfplay.config.plain_data import KEYS, SHARED, check_text
from selfplay.config.shipped_configs import package_of, without_package_line
from selfplay.errors import ConfigError, first_line

LONGEST = 100_000
"""Largest number of characters of an override."""
LONGEST_KEY = 250
"""Largest number of bytes of a key, which may become a file name of at most 255 bytes."""

SINGLE = ("run.name", "run.folder")
"""Keys that a sweep cannot list: they name the folder of all of its runs."""


def parse(text: str) -> Override:
    """Parse an override with Hydra; raise ConfigError, in one line, if Hydra cannot parse it.

    Hydra's parser is recursive, so deep nesting is refused too.
    """
    check_text(text, what="argument")
    if len(text) > LONGEST:
        raise ConfigError(f"cannot read {text[:40]!r}...: it is longer than {LONGEST:,} characters")
    try:
        (parsed,) = OverridesParser.create().parse_overrides([text])
    except (HydraException, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {_short(text)}: {first_line(error)[:200]}") from error
    except RecursionError as error:
        raise ConfigError(f"cannot read {_short(text)}: it is nested too deep") from error
    if not parsed.key_or_group:
        raise ConfigError(f"cannot read {_short(text)}: there is no key before the =")
    if max(len(name.encode()) for name in parsed.key_or_group.split("/")) > LONGEST_KEY:
        raise ConfigError(f"cannot read {_short(text)}: no key has more than {LONGEST_KEY} bytes")
    return parsed


def compose(home: Path, name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a primary config and overrides, with interpolations unresolved.

    Raises the deliberate errors of Hydra and OmegaConf, and ConfigError for input that makes them
    crash, and for a file that lacks the first line which names its package.
    """
    with _initialized(home) as loader:
        composed = hydra_compose(config_name=name, overrides=list(overrides))
        if not {*composed} <= {*KEYS, SHARED}:
            _refuse_without_package(loader, name, overrides)
        return composed


def chosen(home: Path, name: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return the configs that a composition consists of: (path such as credit/grpo, package).

    The package is the key below which a config's settings go, "" for a config whose settings go
    everywhere, such as an experiment's. Later configs override earlier ones.
    """
    with _initialized(home) as loader:
        return _chosen(loader, name, overrides)


def _chosen(loader: ConfigLoaderImpl, name: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    found = loader.compute_defaults_list(
        config_name=name, overrides=list(overrides), run_mode=RunMode.RUN
    )
    return [
        (each.config_path, each.package or "")
        for each in found.defaults
        if each.config_path is not None and not each.config_path.startswith("hydra/")
    ]


def _refuse_without_package(loader: ConfigLoaderImpl, name: str, overrides: Sequence[str]) -> None:
    """Raise ConfigError for a chosen config whose keys went below the name of its group, because
    its file lacks the first line that the shipped configs of this group have."""
    for path, package in _chosen(loader, name, overrides):
        group, _, config = path.partition("/")
        if package == group and group not in KEYS and package_of(group):
            choice = f"{group}={config}"
            typed = next((each for each in overrides if each.lstrip("+") == choice), choice)
            raise ConfigError(without_package_line(typed, group, f"{path}.yaml"))


def search_path(folders: Sequence[Path]) -> list[str]:
    """Return the override that adds folders, in this order, to Hydra's search path of groups."""
    quoted = [str(each.resolve()).replace("\\", "\\\\").replace("'", "\\'") for each in folders]
    listed = ",".join(f"'file://{path}'" for path in quoted)
    return [f"hydra.searchpath=[{listed}]"] if folders else []


@contextmanager
def _initialized(home: Path) -> Iterator[ConfigLoaderImpl]:
    """Yield Hydra's loader for a folder; its global state is cleared afterwards."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(home), version_base=None):
            loader = GlobalHydra.instance().config_loader()
            assert isinstance(loader, ConfigLoaderImpl)
            yield loader
    except (HydraException, OmegaConfBaseException, ValueError):
        raise
    except RecursionError as error:
        raise ConfigError(f"{home}: the config is nested too deep, or contains itself") from error
    except OSError as error:
        raise ConfigError(f"cannot compose the config: {error.strerror or error}") from error
    except (TypeError, AttributeError, KeyError, AssertionError) as error:
        # Hydra uses some values before it checks their types.
        raise ConfigError(f"cannot compose the config: {first_line(error)[:200]}") from error
    finally:
        GlobalHydra.instance().clear()


def _short(text: str) -> str:
    return ascii(text) if len(text) <= 80 else f"{text[:60]!a}..."
