"""Credit by role: every role's turns are credited by a method of their own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from selfplay.credit import Credit, Stateful
from selfplay.credit.base import CreditMethod
from selfplay.errors import ConfigError, nearest
from selfplay.types import Group, Sample


class ByRole(CreditMethod):
    """A role's turns are credited by its method, or by that of "default" if it has none.

    For roles that want different comparisons: one proposal per prompt has no siblings but those of
    the batch, eight attempts at one task have seven. In a mixture of arenas, whose roles are named
    after them, every arena is credited in its own way. To a method, the turns of other roles are
    turns that nobody learns from: part of what was paid, and of no comparison. Failure mode:
    advantages of different methods have different scales, and one policy behind several roles
    follows the largest.
    """

    def __init__(self, *, methods: Mapping[str, Credit]) -> None:
        """`methods`: role to method."""
        if not methods:
            raise ValueError("methods names no role")
        self.methods = dict(methods)

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """All samples, role by role in the order of `methods`."""
        every = [turn for group in groups for episode in group.episodes for turn in episode.turns]
        for role in dict.fromkeys(turn.role for turn in every if turn.trainable):
            if role not in self.methods and "default" not in self.methods:
                raise ConfigError(f"credit.methods: no {role!r}; {nearest(role, self.methods)}")
        found: list[Sample] = []
        for name, method in self.methods.items():
            own = {id(turn) for turn in every if self._name(turn.role) == name}
            found += method.assign([_only(group, own) for group in groups])
        return found

    def _name(self, role: str) -> str:
        return role if role in self.methods else "default"

    def modules(self) -> Mapping[str, Stateful]:
        """What the methods train, as `<role>_<name>`."""
        return {
            f"{role}_{name}": module
            for role, method in self.methods.items()
            for name, module in method.modules().items()
        }

    def metrics(self) -> Mapping[str, float]:
        """The methods' figures, each under its role."""
        return {
            f"{role}/{name}": value
            for role, method in self.methods.items()
            for name, value in method.metrics().items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The methods' states."""
        return {role: method.state_dict() for role, method in self.methods.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the state is of other roles."""
        if set(state) != set(self.methods):
            raise ValueError(f"ByRole credits {sorted(self.methods)}, but got {sorted(state)}")
        for role, method in self.methods.items():
            method.load_state_dict(state[role])


def _only(group: Group, own: Collection[int]) -> Group:
    """The group with nobody learning from turns but its `own` (by identity)."""
    episodes = [
        replace(e, turns=tuple(t if id(t) in own else replace(t, trainable=False) for t in e.turns))
        for e in group.episodes
    ]
    return replace(group, episodes=tuple(episodes))
