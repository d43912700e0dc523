"""Credit by role: the turns of each role are credited by the method of that role."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from selfplay.credit import Credit, Stateful
from selfplay.credit.assigned import assigned, check_method, measured, saved
from selfplay.credit.base import CreditMethod
from selfplay.credit.signal import has_signal
from selfplay.errors import ConfigError, nearest
from selfplay.types import Group, Sample, Turn


class ByRole(CreditMethod):
    """Credits the turns of each role by the method of that role, or by "default" if it has none.

    Roles need different comparisons: one proposal per prompt is compared with the rest of the
    batch, eight attempts at one task with each other. In a mixture, each arena has its own roles. A
    method sees the turns of other roles as not trainable: it does not compare them. Failure mode:
    the scales of advantages differ, and a policy that plays several roles follows the largest.
    """

    def __init__(self, *, methods: Mapping[str, Credit]) -> None:
        """`methods` maps each role to its credit method."""
        if not methods:
            raise ValueError("methods names no role")
        for name, method in methods.items():
            check_method(method, f"credit.methods.{name}")
        self.methods = dict(methods)

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return all samples, role by role. Raises ConfigError if a learning role has no method."""
        every = [turn for group in groups for episode in group.episodes for turn in episode.turns]
        for role in dict.fromkeys(turn.role for turn in every if turn.trainable):
            if role not in self.methods and "default" not in self.methods:
                raise ConfigError(f"credit.methods: no {role!r}; {nearest(role, self.methods)}")
        samples: list[Sample] = []
        for name, method in self.methods.items():
            mine = [self._only(group, name) for group in groups]
            samples += assigned(method, mine, f"credit.methods.{name}")
        return samples

    def has_signal(self, group: Group) -> bool:
        """Return True if the group has a signal for one of the methods, see `signal.has_signal`."""
        return any(
            has_signal(method, self._only(group, name), f"credit.methods.{name}")
            for name, method in self.methods.items()
        )

    def _name(self, role: str) -> str:
        return role if role in self.methods else "default"

    def _only(self, group: Group, name: str) -> Group:
        """Return the group; turns that another method credits are marked as not trainable."""

        def seen(turn: Turn) -> Turn:
            return turn if self._name(turn.role) == name else replace(turn, trainable=False)

        episodes = [replace(e, turns=tuple(map(seen, e.turns))) for e in group.episodes]
        return replace(group, episodes=tuple(episodes))

    def modules(self) -> Mapping[str, Stateful]:
        """Return the trained modules of all methods, as `<role>_<name>`."""
        return {
            f"{role}_{name}": module
            for role, method in self.methods.items()
            for name, module in method.modules().items()
        }

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of all methods, as `<role>/<name>`."""
        return {
            f"{role}/{name}": value
            for role, method in self.methods.items()
            for name, value in measured(method, f"credit.methods.{role}").items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the methods by role."""
        return {name: saved(each, f"credit.methods.{name}") for name, each in self.methods.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states. Raises ValueError if they are of other roles."""
        if set(state) != set(self.methods):
            raise ValueError(f"ByRole credits {sorted(self.methods)}, but got {sorted(state)}")
        for role, method in self.methods.items():
            method.load_state_dict(state[role])
