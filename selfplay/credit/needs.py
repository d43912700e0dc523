"""Whether a sampler can feed a credit method: known from their configs alone."""

import inspect
from collections.abc import Mapping
from typing import Any

from selfplay.build import TARGET, locate
from selfplay.errors import ConfigError


def refuse_unfed(credit: Mapping[str, Any], sampler: Mapping[str, Any]) -> None:
    """Raise ConfigError, with the reason, if no sample could ever get an advantage.

    A method says what it needs by `tree` and `least_group` (see `comparison.Method`), a sampler
    what it gives by `tree` and its `group_size`. Whatever does not say needs nothing; one that is
    made of `methods` needs what they need.
    """
    for part in credit.get("methods", {}).values():
        refuse_unfed(part, sampler)
    method, source = locate(credit[TARGET], "credit"), locate(sampler[TARGET], "sampler")
    if getattr(method, "tree", False) and not getattr(source, "tree", False):
        raise ConfigError(
            f"credit: {method.__name__} credits branches, but {source.__name__} plays independent "
            "episodes; choose sampler=tree or sampler=branch, or another credit"
        )
    parameter = inspect.signature(source).parameters.get("group_size")
    if parameter is None or not hasattr(method, "least_group"):
        return
    size, least = sampler.get("group_size", parameter.default), method.least_group(credit)
    if isinstance(size, int) and size < least:
        others = " (or credit.within to role or prompt)" if "within" in credit else ""
        raise ConfigError(
            f"credit: {method.__name__} compares an agent with itself in at least {least} sibling "
            f"episodes, but sampler.group_size is {size}, so that every advantage would be zero; "
            f"set sampler.group_size to {least} or more{others}"
        )
