"""The configs that come with the library, read one by one for hints in errors."""

from collections.abc import Collection
from importlib.resources import files

import yaml


def with_keys(group: str, needed: Collection[str]) -> list[str]:
    """Return the names of a group's configs that have all these keys, those with the fewest keys
    first.

    Keys that a config takes from another one (`defaults`) do not count.
    """
    found = []
    for file in (files("configs") / group).iterdir():
        if file.name.endswith(".yaml"):
            keys = set(yaml.safe_load(file.read_text("utf-8")))
            if keys.issuperset(needed):
                found.append((len(keys), file.name.removesuffix(".yaml")))
    return [name for _, name in sorted(found)]
