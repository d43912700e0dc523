"""The shards of an engine: the parts of its models, each in a process and on a GPU of its own."""

from collections.abc import Mapping
from typing import Any


def shards_of(config: Mapping[str, Any]) -> int:
    """Return the number of shards of each engine of a config (`engine.tensor_parallel`)."""
    return int(config["engine"].get("tensor_parallel", 1))
