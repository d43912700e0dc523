"""The configs of runs as flat keys, for tables, comparisons and groups of seeds."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.errors import RunError
from selfplay.run.config_data import config_data
from selfplay.viewer.metric_columns import stamp_of

OWN_KEYS = ("seed", "run.name", "run.folder")
"""Keys that differ between the runs of one group: the seed and the place of the record."""
LONGEST_VALUE = 200
"""Largest number of characters of a key or a value."""
MISSING = "\u2013"
"""Text for a key that a config lacks."""

FlatConfig = Mapping[str, str]
"""Dotted key to the text of its value."""


class RunConfigs:
    """Reads the configs of run folders as data. A file is parsed again only after a change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[str, FlatConfig]] = {}

    def read(self, run: Path) -> FlatConfig:
        """Return the flat config of a run; raise RunError if it is not a plain config."""
        path = run / "config.yaml"
        stamp = stamp_of(path)
        known = self._known.get(run)
        if known is None or known[0] != stamp:
            known = self._known[run] = (stamp, dict(_flat(config_data(run), "")))
        return known[1]

    def group(self, run: Path) -> str:
        """Return a text that is equal for runs that differ only in `OWN_KEYS`.

        A run whose config cannot be read is a group of its own.
        """
        try:
            config = self.read(run)
        except RunError:
            return str(run)
        return repr(sorted((key, text) for key, text in config.items() if key not in OWN_KEYS))


def differing(configs: Sequence[FlatConfig]) -> list[str]:
    """Return the keys whose values differ between configs, without `OWN_KEYS`, sorted."""
    keys = sorted({key for config in configs for key in config} - set(OWN_KEYS))
    return [key for key in keys if len({config.get(key, MISSING) for config in configs}) > 1]


def _flat(node: Any, at: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of the values of a config."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{at}.{key}" if at else str(key))
    else:
        yield _text(at), _text(str(node))


def _text(found: str) -> str:
    """Cut a text to a length that a page can show, and replace lone surrogates."""
    return found[:LONGEST_VALUE].encode(errors="replace").decode()
