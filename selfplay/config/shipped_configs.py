"""The configs that come with the library, read one by one for hints in errors."""

import re
from collections.abc import Collection
from importlib.resources import as_file, files

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


def without_package_line(choice: str, group: str, file: str = "") -> str:
    """Return the error for a choice whose file lacks the first line that names its package.

    Args:
        choice: The choice, as it was typed.
        group: Its group, which has such a line in every shipped config.
        file: Path of the file in the folder of configs, if it is known.
    """
    named = f"its file {file}".rstrip()
    return f"{choice}: {named} must begin with the line '# @package {package_of(group)}'"


def package_of(group: str) -> str:
    """Return the package that the first lines of a group's configs name, such as
    population.opponents of opponents; "" if the group is not shipped, or a config has no such line.
    """
    with as_file(files("configs") / group) as folder:
        texts = [path.read_text("utf-8") for path in sorted(folder.rglob("*.yaml"))]
    headers = [re.match(r"# @package (\S+)", text) for text in texts]
    named = {header.group(1) if header else "" for header in headers}
    return named.pop() if len(named) == 1 else ""
