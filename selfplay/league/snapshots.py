"""Snapshots of policies in a league, and the rules that add and drop them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from selfplay.engines import Engine
from selfplay.league import LeagueState, Snapshot
from selfplay.learner.checkpoint import FROZEN
from selfplay.learner.checkpoint_content import FrozenPolicy
from selfplay.models.lora import frozen_copy
from selfplay.models.out_of_memory import explained
from selfplay.models.policy import Policy
from selfplay.rollout.policy_pool import PolicyPool


class SnapshotTrigger(Protocol):
    """Rule that decides when a snapshot of a player is added."""

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Return True if a snapshot is due.

        Args:
            updates: Number of updates of the player since its last snapshot.
            rates: Win rates of the player against its targets.
        """
        ...


class EveryNUpdates:
    """Adds a snapshot every `updates` updates."""

    def __init__(self, *, updates: int) -> None:
        """`updates`: the interval, at least 1."""
        if updates < 1:
            raise ValueError(f"updates must be at least 1, not {updates}")
        self.updates = updates

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Return True after enough updates."""
        return updates >= self.updates


class OnWinRate:
    """AlphaStar's rule: adds a snapshot when the player beats every target often enough.

    It waits for at least `least` updates, and adds a snapshot after more than `most` updates in any
    case.
    """

    def __init__(self, *, least: int, most: int, above: float = 0.7) -> None:
        """Args:
        least: Updates before which no snapshot is added.
        most: Updates after which a snapshot is added in any case.
        above: Win rate that counts as beating a target.
        """
        if not 1 <= least <= most:
            raise ValueError(f"1 <= least <= most is required: {least}, {most}")
        self.least, self.most, self.above = least, most, above

    def due(self, updates: int, rates: Sequence[float]) -> bool:
        """Return True if the rates or the number of updates ask for a snapshot."""
        beats_all = bool(rates) and min(rates) > self.above
        return updates >= self.least and (beats_all or updates > self.most)


class EvictionPolicy(Protocol):
    """Rule that drops snapshots, to limit their number and so their memory."""

    most: int
    """Maximum number of snapshots."""

    def dropped(self, table: LeagueState) -> list[str]:
        """Return the names of the snapshots to drop, so that at most `most` remain."""
        ...


class EvictOldest:
    """Drops the oldest snapshot of the player that has the most snapshots."""

    def __init__(self, *, most: int = 10) -> None:
        """`most`: maximum number of snapshots of all players together."""
        self.most = _at_least_one(most)

    def dropped(self, table: LeagueState) -> list[str]:
        """Return the oldest snapshots above the limit."""
        left = list(table.snapshots)
        found = []
        while len(left) > self.most:
            counts = Counter(each.player for each in left)
            oldest = next(each for each in left if counts[each.player] == max(counts.values()))
            left.remove(oldest)
            found.append(oldest.name)
        return found


class EvictWeakest:
    """Drops the snapshots that all main players beat most often; the older one in a tie.

    For each snapshot the smallest win rate of a main player against it counts. The newest snapshot
    always stays, because it has played few games.
    """

    def __init__(self, *, most: int = 10) -> None:
        """`most`: maximum number of snapshots."""
        self.most = _at_least_one(most)

    def dropped(self, table: LeagueState) -> list[str]:
        """Return the weakest snapshots above the limit."""
        *older, _ = table.past() or [""]
        beaten = {
            name: min(table.payoff.rate(main, name) for main in table.mains) for name in older
        }
        ranked = sorted(older, key=lambda name: -beaten[name])
        return ranked[: max(0, len(table.snapshots) - self.most)]


def _at_least_one(most: int) -> int:
    if most < 1:
        raise ValueError(f"most must be at least 1, not {most}")
    return most


FEWER_COPIES = (
    "lower league.drop.most, train an adapter (policy.lora), whose copies share its base, or lower "
    "engine.memory where vLLM samples"
)
"""Advice of an error about missing memory: config keys that leave more memory for copies."""
START = "start"
"""Suffix after `@` in the name of a player's initial weights."""


class Snapshots:
    """The snapshots of a league as policies that the engine serves.

    A snapshot copies the full weights of its player, or only its adapter over the shared base. It
    takes that memory until it is dropped, which limits the number of snapshots. Only snapshots
    that play in a step have a key-value cache.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        policy_pool: PolicyPool,
        engine: Engine,
        *,
        begin_again: Sequence[str] = (),
    ) -> None:
        """`begin_again`: names of the players whose initial weights are stored too."""
        self.policies, self.policy_pool, self.engine = policies, policy_pool, engine
        self._copies: dict[str, Policy] = {}
        self._starts = {name: copy_of(policies[name], f"{name}@{START}") for name in begin_again}
        self._written: dict[str, Path] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Copy the player's current weights and add the copy to the engine and the pool."""
        copy = copy_of(self.policies[snapshot.player], snapshot.name, version=snapshot.updates)
        self._copies[snapshot.name] = copy
        self.engine.serve(copy.name, copy.model, copy.renderer.end_ids)
        self.engine.publish(copy.name, {}, copy.version)
        self.policy_pool.add(copy.name, self.engine, copy.renderer)

    def remove(self, name: str) -> None:
        """Remove a snapshot from the engine and the pool, and free its memory."""
        self.policy_pool.remove(name)
        self.engine.withdraw(name)
        del self._copies[name]
        self._written.pop(name, None)

    def rest(self) -> None:
        """Free the key-value caches of all snapshots until they play again."""
        for name in self._copies:
            self.engine.release(name)

    def begin_again(self, player: str) -> None:
        """Reset a player to its initial weights, in place."""
        policy, weights = self.policies[player], self._starts[player].model.state_dict()
        policy.model.load_state_dict(weights)
        self.engine.publish(player, policy.model.state_dict(), policy.version)

    def frozen(self) -> dict[str, FrozenPolicy]:
        """Return the policies for a checkpoint by folder name, with their earlier files."""
        return {
            policy.name: FrozenPolicy(policy=policy, written=self._written.get(policy.name))
            for policy in self._all()
        }

    def written(self, place: Path) -> None:
        """Remember the checkpoint that now stores the snapshots."""
        self._written = {policy.name: place / FROZEN / policy.name for policy in self._all()}

    def load(self, place: Path, snapshots: Sequence[Snapshot]) -> None:
        """Replace all snapshots by those of a checkpoint."""
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
    """Return a frozen copy of a policy with its current weights.

    Raises RunError if its device has no memory for the copy.
    """
    with explained(f"the copy {name!r} of policy {policy.name!r}", FEWER_COPIES):
        model = frozen_copy(policy.model)
    return replace(
        policy,
        name=name,
        model=model,
        learn=False,
        version=version,
        reference=None,
    )
