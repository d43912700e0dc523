"""Limit of trust of each command, from its flags (see `selfplay.config.trust`)."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from selfplay.config.trust import TrustLimit

RUNS = ("average", "evaluate", "replay", "study", "report", "watch", "show", "export", "tag")
"""Commands that always open a run folder."""


def takes_trust(command: argparse.ArgumentParser) -> None:
    """Give a command the flag `--trust`."""
    command.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="allow code of this package if the run's config names it; may be repeated",
    )


def limit_of(
    options: argparse.Namespace, rest: Sequence[str], words: Sequence[str]
) -> TrustLimit | None:
    """Return the limit of trust of a command; None if the command opens neither a run folder nor a
    `--config-path`, because the user then composes the config.

    Args:
        options: Flags of the command; its name is `options.name`.
        rest: Other arguments of the command.
        words: Command line after `selfplay`.
    Raises:
        ConfigError: If a `--trust` is not a package name.
    """
    limit = TrustLimit(
        packages=tuple(getattr(options, "trust", ())),
        command=("selfplay", *map(str, words)),
        trains=options.name == "train",
    )
    return limit if _opens_run(options, rest) else None


def _opens_run(options: argparse.Namespace, rest: Sequence[str]) -> bool:
    if options.name == "train":
        resumes = any(word.startswith("resume=") for word in rest)
        return resumes or options.config_path is not None
    if options.name == "check":
        return options.config_path is not None
    if options.name == "play":
        folder, at, _ = str(options.target).rpartition("@")
        return Path(options.target).is_dir() or bool(at and Path(folder).is_dir())
    if options.name == "plan":
        return options.run is not None
    return options.name in RUNS


def search_current_folder(limit: TrustLimit | None) -> None:
    """Append the current folder to the search path of modules.

    It may contain the user's own arenas and roles. It is not searched if the user opens a run
    folder and trusts no package: a folder of downloads may contain a module of any name.
    """
    if limit is not None and not limit.packages:
        return
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
