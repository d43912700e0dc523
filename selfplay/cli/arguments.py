"""Arguments of commands: overrides, and the config that they compose."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from selfplay.config import compose
from selfplay.errors import ConfigError, printable

HOST = "127.0.0.1"
"""Default address of the local pages, which only this machine can open."""
PLAY_PORT = 8766
"""Default port of `play --page`."""
OVERRIDDEN = ("train", "check", "evaluate", "warmstart", "plan", "replay", "play")
"""Commands that take key=value; their usage line says so, and keys are completed after them."""


def takes_run(command: argparse.ArgumentParser) -> None:
    """Give a command the argument RUN, the folder of a run."""
    command.add_argument("run", type=Path, metavar="RUN", help="folder of the run")


def print_notes(lines: Iterable[str]) -> None:
    """Print notes: lines for the user that do not end the command."""
    for line in lines:
        note(line)


def note(line: str) -> None:
    """Print a note: a line for the user that does not end the command."""
    print(f"note: {printable(line)}", file=sys.stderr)


def load(
    options: argparse.Namespace,
    overrides: Sequence[str],
    *,
    report: Callable[[str], object] = note,
) -> dict[str, Any]:
    """Return the config that a command's flags and overrides compose.

    Args:
        options: Flags of the command.
        overrides: Other arguments of the command.
        report: Called with a line per dropped setting of an experiment; the default prints it.
    """
    path: Path | None = getattr(options, "config_path", None)
    search = options.config_dir
    if path is None or not (path / f"{compose.RUN}.yaml").is_file():
        return compose.load(overrides, folder=path, search=search, report=report)
    return compose.load_changed(path, overrides, search=search)


def no_flags(overrides: Sequence[str]) -> None:
    """Raise ConfigError for an argument that is neither key=value nor ~key."""
    for override in overrides:
        if override.startswith("-") or ("=" not in override and not override.startswith("~")):
            named = override if override in compose.choices("experiment") else "NAME"
            raise ConfigError(
                f"cannot read {override!r}: arguments are key=value, such as seed=1, or "
                f"+experiment={named} (see selfplay train --help)"
            )


def nothing_more(rest: Sequence[str], options: argparse.Namespace) -> None:
    """Raise ConfigError for an unexpected argument; the line names the help of the command."""
    if rest:
        measure = getattr(options, "measure", None)
        command = " ".join(["selfplay", options.name, *([measure] if measure else [])])
        raise ConfigError(f"unexpected argument {rest[0]!r} (see {command} --help)")


class Steps(argparse.Action):
    """Flag with several numbers; other arguments after the numbers are overrides.

    `replay RUN --steps 20 credit=rloo` means the same as `replay RUN credit=rloo --steps 20`. The
    overrides are collected in `later_overrides`.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Split the arguments after the flag into numbers and overrides; end with a usage error
        for an argument that is neither."""
        found = [value for value in values if value.isdecimal() and len(value) < 10]
        others = [value for value in values if value not in found]
        for value in others:
            if "=" not in value and not value.startswith("~"):
                parser.error(f"argument {option_string}: {value!r} is not a step")
        if not found:
            parser.error(f"argument {option_string}: expected at least one step")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *map(int, found)])
        namespace.later_overrides = [*getattr(namespace, "later_overrides", []), *others]
