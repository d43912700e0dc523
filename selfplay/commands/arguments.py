"""What commands are given: overrides, and the config that they make."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfplay import config
from selfplay.errors import ConfigError

HOST = "127.0.0.1"
"""Where pages are served: to this machine alone."""
PLAY_PORT = 8766
"""Where `play --page` is."""


def load(options: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
    """The config that a command's flags and overrides compose to."""
    path: Path | None = getattr(options, "config_path", None)
    name = "config" if path is not None and (path / "config.yaml").is_file() else "train"
    return config.load(overrides, name=name, folder=path, search=options.config_dir)


def no_flags(overrides: Sequence[str]) -> None:
    """Raise ConfigError for what is neither key=value nor a key that is taken out."""
    for override in overrides:
        if override.startswith("-") or ("=" not in override and not override.startswith("~")):
            raise ConfigError(
                f"cannot read {override!r}: arguments are key=value, such as seed=1, or "
                "+experiment=NAME (see selfplay train --help)"
            )


def nothing_more(rest: Sequence[str]) -> None:
    """Raise ConfigError for an argument that nobody asked for."""
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r} (see selfplay --help)")
