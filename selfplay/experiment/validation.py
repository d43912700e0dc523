"""Whether a credit method has what it works on, samples and roles: known from configs alone."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from selfplay.config.instantiate import TARGET, import_target
from selfplay.credit.by_role import ByRole
from selfplay.errors import ConfigError, nearest


def check_sampler_supports_credit(credit: Mapping[str, Any], sampler: Mapping[str, Any]) -> None:
    """Raise ConfigError, with the reason, if no sample could ever get an advantage.

    A method says what it needs by `tree` and `min_group_size` (see `comparison.Method`), a sampler
    what it gives by `tree` and its `group_size`. Whatever does not say needs nothing; one that is
    made of `methods` needs what they need.
    """
    for name, part in credit.get("methods", {}).items():
        if not isinstance(part, Mapping):
            raise ConfigError(f"credit.methods.{name}: no method; drop it: ~credit.methods.{name}")
        check_sampler_supports_credit(part, sampler)
    method, source = (
        import_target(credit[TARGET], "credit"),
        import_target(sampler[TARGET], "sampler"),
    )
    if getattr(method, "tree", False) and not getattr(source, "tree", False):
        raise ConfigError(
            f"credit: {method.__name__} credits branches, but {source.__name__} plays independent "
            "episodes; choose sampler=tree or sampler=branch, or another credit"
        )
    parameter = inspect.signature(source).parameters.get("group_size")
    if parameter is None or not hasattr(method, "min_group_size"):
        return
    size, least = sampler.get("group_size", parameter.default), method.min_group_size(credit)
    if isinstance(size, int) and size < least:
        others = " (or credit.group_by to role or prompt)" if "group_by" in credit else ""
        raise ConfigError(
            f"credit: {method.__name__} compares an agent with itself in at least {least} sibling "
            f"episodes, but sampler.group_size is {size}, so that every advantage would be zero; "
            f"set sampler.group_size to {least} or more{others}"
        )


def check_roles(
    credit: Mapping[str, Any], shaping: Mapping[str, Any], roles: Collection[str]
) -> None:
    """Raise ConfigError for a name that is no role, and for a role that no method credits."""
    methods = credit.get("methods", {})
    if import_target(credit[TARGET], "credit") is ByRole:
        for name in methods:
            if name not in roles and name != "default":
                raise ConfigError(f"credit.methods: no role {name!r}; {nearest(name, roles)}")
        for role in roles:
            if role not in methods and "default" not in methods:
                raise ConfigError(f"credit.methods: none for {role!r}; name it, or a default")
    for name, node in shaping.items():
        role = node.get("role")
        if role is not None and role not in roles:
            raise ConfigError(f"shaping.{name}.role: no role {role!r}; {nearest(role, roles)}")
