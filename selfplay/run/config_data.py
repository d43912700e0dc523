"""The config of a run as plain data, for commands that import no name in it."""

from pathlib import Path
from typing import Any

import yaml

from selfplay.config.plain_data import check_expansion
from selfplay.errors import ConfigError, RunError
from selfplay.run.run_folder import CONFIG
from selfplay.run.untrusted import open_regular

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def config_data(run: Path) -> dict[str, Any]:
    """Return the resolved config in a run folder.

    Raises RunError for a file that is no mapping, is too large when its aliases are expanded, or
    lies outside the folder.
    """
    path = run / CONFIG
    try:
        with open_regular(path, root=run) as file:
            check_expansion(path)
            config = yaml.load(file, Loader=LOADER)
    except (OSError, ValueError, RecursionError, yaml.YAMLError, ConfigError) as error:
        raise RunError(f"{path}: cannot be read as the config of a run") from error
    if not isinstance(config, dict):
        raise RunError(f"{path}: cannot be read as the config of a run (expected a mapping)")
    return config
