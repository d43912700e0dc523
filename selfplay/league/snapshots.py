"""Snapshots as policies: copies of what learned, in the engine while they are in the league."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from selfplay.checkpoint import FROZEN, Frozen
from selfplay.engines import ServingEngine
from selfplay.league import Snapshot
from selfplay.lora import frozen_copy
from selfplay.policy import Policy
from selfplay.seating import Seating

START = "start"
"""What the first weights of a player are called, behind the `@`."""


class Snapshots:
    """Copies of full weights, or of adapters alone over the very base of their player.

    A copy takes the memory of what was copied until it is dropped, which limits how many there can
    be; a key-value cache only those have that play in a step.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        seating: Seating,
        engine: ServingEngine,
        *,
        begin_again: Sequence[str] = (),
    ) -> None:
        """`begin_again`: the players whose first weights are kept too."""
        self.policies, self.seating, self.engine = policies, seating, engine
        self._copies: dict[str, Policy] = {}
        self._starts = {name: copy_of(policies[name], f"{name}@{START}") for name in begin_again}
        self._written: dict[str, Path] = {}

    def add(self, snapshot: Snapshot) -> None:
        """A copy of the player as it is now, to be seated from now on."""
        copy = copy_of(self.policies[snapshot.player], snapshot.name, version=snapshot.updates)
        self._copies[snapshot.name] = copy
        self.engine.serve(copy.name, copy.model, copy.renderer.end_ids)
        self.engine.publish(copy.name, {}, copy.version)
        self.seating.add(copy.name, self.engine, copy.renderer)

    def remove(self, name: str) -> None:
        """A copy that is not seated any more; its memory is free."""
        self.seating.remove(name)
        self.engine.withdraw(name)
        del self._copies[name]
        self._written.pop(name, None)

    def rest(self) -> None:
        """Let no copy keep a key-value cache until it plays again."""
        for name in self._copies:
            self.engine.release(name)

    def begin_again(self, player: str) -> None:
        """Give a player its first weights back, in place."""
        policy, weights = self.policies[player], self._starts[player].model.state_dict()
        policy.model.load_state_dict(weights)
        self.engine.publish(player, policy.model.state_dict(), policy.version)

    def frozen(self) -> dict[str, Frozen]:
        """What a checkpoint keeps, by folder name, with where it stands already."""
        return {
            policy.name: Frozen(policy=policy, written=self._written.get(policy.name))
            for policy in self._all()
        }

    def written(self, place: Path) -> None:
        """They stand in this checkpoint now."""
        self._written = {policy.name: place / FROZEN / policy.name for policy in self._all()}

    def load(self, place: Path, snapshots: Sequence[Snapshot]) -> None:
        """Those of a checkpoint, in place of all that there are."""
        for name in list(self._copies):
            self.remove(name)
        for snapshot in snapshots:
            self.add(snapshot)
        for policy in self._all():
            policy.load_weights(place / FROZEN / policy.name)
        for copy in self._copies.values():
            self.engine.publish(copy.name, copy.model.state_dict(), copy.version)
        self.written(place)

    def _all(self) -> Iterator[Policy]:
        yield from self._copies.values()
        yield from self._starts.values()


def copy_of(policy: Policy, name: str, *, version: int = 0) -> Policy:
    """A policy that stays as this one is now."""
    return replace(
        policy,
        name=name,
        model=frozen_copy(policy.model),
        learn=False,
        version=version,
        reference=None,
    )
