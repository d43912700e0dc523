"""Sets of runs, as a command line names them."""

from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from selfplay.errors import ConfigError
from selfplay.study.players import Reference


def parse_sets(texts: Sequence[str]) -> dict[str, list[Reference]]:
    """The sets that `NAME=RUN` names, where RUN may have wildcards and may stand several times.

    Raises ConfigError for what is no set, or names no run or one run twice.
    """
    found: dict[str, list[Reference]] = {}
    for text in texts:
        name, equals, runs = text.partition("=")
        if not (equals and name and runs):
            raise ConfigError(
                f"{text}: no set of runs; write NAME=RUN, such as shared='runs/shared-*' or "
                "before='runs/shared-*@start'"
            )
        known = found.setdefault(name, [])
        for reference in _references(runs):
            if reference in known:
                raise ConfigError(f"{text}: {reference.run} is named twice in {name}")
            known.append(reference)
    return found


def _references(text: str) -> list[Reference]:
    if not has_magic(text):
        return [Reference.parse(text)]
    pattern, at, step = text.rpartition("@")
    folders = sorted(place for place in glob(pattern if at else text) if Path(place).is_dir())
    if not folders:
        raise ConfigError(f"{text}: no such run folder")
    return [Reference.parse(f"{folder}{at}{step if at else ''}") for folder in folders]
