"""The population: which policies exist, and who plays whom."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from selfplay.errors import ConfigError, nearest

SHARED = "base"
"""Name of the policy that all roles share."""

SETTINGS = ("model", "learn", "dtype", "device")
"""What can be said of a policy."""


@dataclass(frozen=True, kw_only=True)
class Population:
    """Roles share one policy, or each has one of its own, or a table says who has which."""

    policy: Mapping[str, Any]
    """Settings of a policy (model, learn, dtype, device) where nothing more special is said."""
    sharing: Literal["shared", "separate"] = "shared"
    """shared: one policy for all roles. separate: every role starts from a copy of its own."""
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policy name to settings that replace those of `policy` (another model, learn: false)."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role to policy name, where `sharing` does not say it already."""

    def policy_of(self, role: str) -> str:
        """Name of the policy behind a role."""
        return self.roles.get(role, SHARED if self.sharing == "shared" else role)

    def policies(self, roles: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Name to settings of every policy that the roles need; ConfigError for unknown names."""
        known = list(roles)
        names = list(dict.fromkeys(self.policy_of(role) for role in known))
        for role in self.roles:
            if role not in known:
                raise ConfigError(f"population.roles: no role {role!r}; {nearest(role, known)}")
        for name in self.special:
            if name not in names:
                raise ConfigError(f"population.special: no policy {name!r}; {nearest(name, names)}")
        for where, settings in (("policy", self.policy), *self.special.items()):
            for key in settings:
                if key not in SETTINGS:
                    place = where if where == "policy" else f"special.{where}"
                    raise ConfigError(
                        f"population.{place}.{key}: unknown key; {nearest(key, SETTINGS)}"
                    )
        return {name: {**self.policy, **self.special.get(name, {})} for name in names}
