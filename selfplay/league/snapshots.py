"""Snapshots as policies: copies of what learned, in the engine while they are in the league.

Rules: when a snapshot is added to a league, and which one is dropped when there are too many.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from selfplay.engines import ServingEngine
from selfplay.league import LeagueState, Snapshot
from selfplay.learner.checkpoint import FROZEN, FrozenPolicy
from selfplay.models.lora import frozen_copy
from selfplay.models.policy import Policy
from selfplay.rollout.policy_pool import PolicyPool


class SnapshotTrigger(Protocol):
    """When a player's snapshot is added."""

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Args:
        updates: Of the player since its last snapshot.
        rates: How often it beats each of its rivals.
        """
        ...


class EveryNUpdates:
    """After every so many updates."""

    def __init__(self, *, updates: int) -> None:
        """`updates`: how many."""
        if updates < 1:
            raise ValueError(f"updates is at least 1, not {updates}")
        self.updates = updates

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Whether it has been so many."""
        return updates >= self.updates


class OnWinRate:
    """When the player beats every rival often enough, and in any case after `most` updates.

    AlphaStar's rule: no earlier than after `least` updates.
    """

    def __init__(self, *, least: int, most: int, above: float = 0.7) -> None:
        """`above`: the rate that counts as beating."""
        if not 1 <= least <= most:
            raise ValueError(f"least is at least 1, most at least that: {least}, {most}")
        self.least, self.most, self.above = least, most, above

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Whether it is time."""
        beats_all = bool(rates) and min(rates) > self.above
        return updates >= self.least and (beats_all or updates > self.most)


class EvictionPolicy(Protocol):
    """Which snapshots go. It bounds how many there are, and so the memory that they take."""

    most: int
    """How many may stay."""

    def dropped(self, table: LeagueState) -> list[str]:
        """Names of those to drop, which leave `most` at the most."""
        ...


class EvictOldest:
    """The oldest go, of the player that has the most."""

    def __init__(self, *, most: int = 10) -> None:
        """`most`: how many stay, of all players together."""
        self.most = _at_least_one(most)

    def dropped(self, table: LeagueState) -> list[str]:
        """The oldest above the limit."""
        left = list(table.snapshots)
        found = []
        while len(left) > self.most:
            counts = Counter(each.player for each in left)
            oldest = next(each for each in left if counts[each.player] == max(counts.values()))
            left.remove(oldest)
            found.append(oldest.name)
        return found


class EvictWeakest:
    """Those go that the main players beat most of the time, the older first where two are alike.

    The newest snapshot stays whatever it is worth: it has hardly played.
    """

    def __init__(self, *, most: int = 10) -> None:
        """`most`: how many stay."""
        self.most = _at_least_one(most)

    def dropped(self, table: LeagueState) -> list[str]:
        """The most beaten above the limit."""
        *older, _ = table.past() or [""]
        beaten = {
            name: min(table.payoff.rate(main, name) for main in table.mains) for name in older
        }
        ranked = sorted(older, key=lambda name: -beaten[name])
        return ranked[: max(0, len(table.snapshots) - self.most)]


def _at_least_one(most: int) -> int:
    if most < 1:
        raise ValueError(f"most is at least 1, not {most}")
    return most


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
        policy_pool: PolicyPool,
        engine: ServingEngine,
        *,
        begin_again: Sequence[str] = (),
    ) -> None:
        """`begin_again`: the players whose first weights are kept too."""
        self.policies, self.policy_pool, self.engine = policies, policy_pool, engine
        self._copies: dict[str, Policy] = {}
        self._starts = {name: copy_of(policies[name], f"{name}@{START}") for name in begin_again}
        self._written: dict[str, Path] = {}

    def add(self, snapshot: Snapshot) -> None:
        """A copy of the player as it is now, to be seated from now on."""
        copy = copy_of(self.policies[snapshot.player], snapshot.name, version=snapshot.updates)
        self._copies[snapshot.name] = copy
        self.engine.serve(copy.name, copy.model, copy.renderer.end_ids)
        self.engine.publish(copy.name, {}, copy.version)
        self.policy_pool.add(copy.name, self.engine, copy.renderer)

    def remove(self, name: str) -> None:
        """A copy that is not seated any more; its memory is free."""
        self.policy_pool.remove(name)
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

    def frozen(self) -> dict[str, FrozenPolicy]:
        """What a checkpoint keeps, by folder name, with where it stands already."""
        return {
            policy.name: FrozenPolicy(policy=policy, written=self._written.get(policy.name))
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
