"""Populations that a config describes, with roles that a test names."""

from collections.abc import Iterable, Mapping
from typing import Any

from selfplay.models.population import Population


def population(
    names: Iterable[str], /, *, warmstart: Mapping[str, Any] | None = None, **settings: Any
) -> Population:
    """Build the population of a config with roles of these names, a warm start and settings."""
    node = {"_target_": "selfplay.models.population.Population", "policy": {}, **settings}
    roles: Mapping[str, Any] = {name: {} for name in names}
    return Population.of({"population": node, "roles": roles, "warmstart": warmstart or {}})
