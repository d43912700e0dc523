"""The configs of runs as flat keys, for tables, comparisons and groups of seeds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from selfplay.config.instantiate import TARGET
from selfplay.errors import RunError
from selfplay.run.config_data import config_data
from selfplay.run.run_folder import CONFIG
from selfplay.viewer.metric_columns import stamp_of

EXPERIMENT = "run.experiment"
"""Key of the experiment's name."""
SEED = "seed"
"""Key of the run's seed, and last part of the keys of other seeds, such as `warmstart.seed`."""
OWN_KEYS = (SEED, "run.name", "run.folder", "run.threads")
"""Keys that differ between the runs of one group: seed, place of the record, and threads."""
LONGEST_VALUE = 200
"""Largest number of characters of a key or a value of which the whole text is kept."""
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
        path = run / CONFIG
        stamp = stamp_of(path)
        known = self._known.get(run)
        if known is None or known[0] != stamp:
            known = self._known[run] = (stamp, dict(_flat(config_data(run), "")))
        return known[1]

    def group(self, run: Path) -> str:
        """Return a text that is equal for runs that differ only in `OWN_KEYS` and in seeds.

        No seed counts, because the config of one run does not show which of its seeds follow
        `${seed}`: with the run's seed 0 and `warmstart.seed` 0, the second may be a fixed number.
        A run whose config cannot be read is a group of its own.
        """
        try:
            config = self.read(run)
        except RunError:
            return str(run)
        kept = {key for key in config if key not in OWN_KEYS and not _is_seed(key)}
        return repr(sorted((key, config[key]) for key in kept))


def differing(configs: Sequence[FlatConfig]) -> list[str]:
    """Return the keys whose values differ between configs, sorted.

    `OWN_KEYS` are left out, and the keys of seeds that are equal to the run's seed in every config.
    """
    keys = sorted({key for config in configs for key in config} - set(OWN_KEYS))
    return [
        key
        for key in keys
        if len({config.get(key, MISSING) for config in configs}) > 1
        and not (_is_seed(key) and all(config.get(key) == config.get(SEED) for config in configs))
    ]


def chief_keys(keys: Sequence[str], configs: Sequence[FlatConfig]) -> list[str]:
    """Return differing keys of configs for a table: the experiment, then those that all have.

    If nodes have different classes, only their `_target_` is returned, because their other keys
    cannot be compared.
    """
    nodes = {key.removesuffix(f".{TARGET}") for key in keys if key.endswith(f".{TARGET}")}

    def rank(key: str) -> tuple[bool, bool, str]:
        return key != EXPERIMENT, any(key not in config for config in configs), key

    return sorted((key for key in keys if not _is_below(key, nodes)), key=rank)


def _is_below(key: str, nodes: set[str]) -> bool:
    """Return True if a key is inside one of these nodes and is not the node's own `_target_`."""
    parts = key.removesuffix(f".{TARGET}").split(".")[:-1]
    return any(".".join(parts[: count + 1]) in nodes for count in range(len(parts)))


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == SEED


def _flat(node: Any, at: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of the values of a config."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{at}.{key}" if at else str(key))
    else:
        yield _text(at), _text(_written(node))


def _written(value: Any) -> str:
    """Return a value as a config has it: null, true, ["north", "south"]."""
    if value is None or isinstance(value, bool | list | dict):
        try:
            return json.dumps(value, ensure_ascii=False, default=str)
        except TypeError:  # a key that JSON cannot have, such as a date
            return str(value)
    return str(value)


def _text(found: str) -> str:
    """Replace lone surrogates, and cut a text to a length that a page can show.

    Texts that are cut and differ stay different: each ends with the hash of the whole text.
    """
    cut = ""
    if len(found) > LONGEST_VALUE:
        digest = sha256(found.encode(errors="surrogatepass")).hexdigest()[:16]
        cut = f"... ({len(found):,} characters, SHA-256 {digest}...)"
    return f"{found[:LONGEST_VALUE]}{cut}".encode(errors="replace").decode()
