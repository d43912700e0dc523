"""The world of a config: its services, roles and arenas. No policy, and nothing that learns."""

from collections.abc import Callable, Mapping
from typing import Any

from selfplay.arena import Arena
from selfplay.build import build, construct, prepare
from selfplay.errors import ConfigError, nearest
from selfplay.role import Role


class World:
    """Built once; whoever built it closes it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigError for the first thing that cannot be built."""
        self.config = config
        self.services: dict[str, Any] = {"seed": int(config["seed"])}
        """By name, and the seed, as what is built from the config is given them."""
        try:
            for name, node in config["services"].items():
                self.services[name] = build(node, where=f"services.{name}", provided=self.services)
            self.roles: dict[str, Role] = {
                name: build(node, where=f"roles.{name}", provided=self.services)
                for name, node in config["roles"].items()
            }
            self.arena = self.arena_of(config["arena"], where="arena")
        except BaseException:
            self.close()
            raise

    def build(self, key: str, **given: Any) -> Any:
        """What the config has under a key, given the services and whatever else there is."""
        return build(self.config[key], where=key, provided={**self.services, **given})

    def arena_of(self, node: Mapping[str, Any], *, where: str) -> Callable[[], Arena]:
        """What makes a fresh arena; one is made now, to see that its roles are there."""
        target, arguments = prepare(node, where=where, provided=self.services)

        def make() -> Arena:
            made: Arena = construct(target, arguments, where=where)
            return made

        for role in make().roles:
            if role not in self.roles:
                raise ConfigError(
                    f"roles: none is called {role!r}, which {where} needs; choose roles=NAME for "
                    f"this arena, or add roles.{role} ({nearest(role, self.roles)})"
                )
        return make

    def close(self) -> None:
        """Release services that hold processes."""
        for service in self.services.values():
            if hasattr(service, "close"):
                service.close()
