"""The engine of a worker, which applies the driver's updates between two steps."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Condition
from typing import Any

from transformers import PreTrainedModel

from selfplay.engines import Engine
from selfplay.errors import EngineFailed, SelfplayError, StalledError, one_line
from selfplay.models.offload import offload
from selfplay.models.out_of_memory import explained
from selfplay.runtime.weight_sync import (
    AddPolicy,
    Change,
    LoadState,
    OffloadPolicy,
    RemovePolicy,
    UpdateWeights,
)
from selfplay.types import Completion, Request


class EngineDied(RuntimeError):
    """Raised if an engine failed; its worker cannot continue and is replaced."""


def guarded(method: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a method of an engine, or of `receive`; raise a failure as EngineDied.

    A SelfplayError is raised as it is, except EngineFailed, which becomes EngineDied too. For a
    full GPU, RunError is raised.
    """
    try:
        with explained("an engine", "lower engine.memory, engine.cache or engine.max_rows"):
            return method(*arguments)
    except EngineFailed as error:
        raise EngineDied(str(error)) from error
    except SelfplayError:
        raise
    except Exception as error:
        raise EngineDied(one_line(error)) from error


class UpdateQueue:
    """Updates that wait to be applied, in the order in which the driver sent them."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._number = 0
        self._arrived = Condition()
        self._fault: BaseException | None = None

    def put(self, number: int, change: Change) -> None:
        """Add the update with this number, and drop those that it replaces.

        The queue of a worker without episodes would otherwise keep all versions of the weights in
        the cluster's object store.
        """
        with self._arrived:
            kept = [each for each in self._changes if not _replaces(change, each)]
            if isinstance(change, RemovePolicy) and (added := _newest_of(change.policy, kept)):
                kept.remove(added)  # the policy was never served here
            else:
                kept.append(change)
            self._changes = deque(kept)
            self._number = max(self._number, number)
            self._arrived.notify_all()

    def fail(self, fault: BaseException) -> None:
        """Let all later calls of `wait` and `take` raise an error, because an update is lost."""
        with self._arrived:
            self._fault = self._fault or fault
            self._arrived.notify_all()

    def begin(self, number: int, changes: Sequence[Change]) -> None:
        """Insert the updates sent before this worker started; later ones may be here already."""
        with self._arrived:
            self._changes.extendleft(reversed(changes))
            self._number = max(self._number, number)
            self._arrived.notify_all()

    def wait(self, number: int, timeout: float | None) -> None:
        """Wait until all updates up to this number are here; StalledError if they are late.

        `timeout` is in seconds; None waits without a limit.
        """
        with self._arrived:
            here = self._arrived.wait_for(lambda: self._fault or self._number >= number, timeout)
            if self._fault is not None:
                raise self._fault
            if not here:
                raise StalledError(
                    f"runtime: waited {timeout:g} s for update {number} of the driver"
                )

    def take(self, *, held: tuple[type[Change], ...] = ()) -> list[Change]:
        """Remove and return the updates that can be applied now.

        Updates of the types in `held`, and later ones of the same policies, stay in the queue.
        """
        with self._arrived:
            if self._fault is not None:
                raise self._fault
            ready, self._changes = self._divided(held)
            return ready

    def holds(self, held: tuple[type[Change], ...]) -> bool:
        """Return True if `take` would leave an update that later episodes need.

        They need every update except `OffloadPolicy`, which only frees memory.
        """
        with self._arrived:
            _, left = self._divided(held)
            return any(not isinstance(change, OffloadPolicy) for change in left)

    def _divided(self, held: tuple[type[Change], ...]) -> tuple[list[Change], deque[Change]]:
        """Return the updates that can be applied now, and the others."""
        ready, left, names = list[Change](), deque[Change](), set[str | None]()
        for change in self._changes:
            name = None if isinstance(change, LoadState) else change.policy
            if isinstance(change, held) or name in names:
                names.add(name)
                left.append(change)
            else:
                ready.append(change)
        return ready, left


def _replaces(later: Change, earlier: Change) -> bool:
    """Return True if an update makes an earlier one that waits unnecessary."""
    if isinstance(later, UpdateWeights) and isinstance(earlier, UpdateWeights):
        replaced = later.weights is not None or earlier.weights is None
        return replaced and later.policy == earlier.policy
    if isinstance(later, LoadState) and isinstance(earlier, LoadState):
        return later.service == earlier.service
    if isinstance(later, RemovePolicy):
        return isinstance(earlier, UpdateWeights | OffloadPolicy) and later.policy == earlier.policy
    return isinstance(later, OffloadPolicy) and later == earlier


def _newest_of(policy: str, changes: Sequence[Change]) -> AddPolicy | None:
    """Return the update that adds this policy, if it waits and no later one removes the policy."""
    for change in reversed(changes):
        if isinstance(change, AddPolicy | RemovePolicy) and change.policy == policy:
            return change if isinstance(change, AddPolicy) else None
    return None


class UpdatableEngine(Engine):
    """Wraps another engine and applies the driver's updates between its steps.

    A failure of the wrapped engine is raised as EngineDied.
    """

    def __init__(
        self,
        engine: Engine,
        inbox: UpdateQueue,
        apply: Callable[[Change], None],
    ) -> None:
        """Args:
        engine: The wrapped engine.
        inbox: Queue of the updates.
        apply: Applies an update.
        """
        self.engine, self.inbox, self._apply = engine, inbox, apply
        # No policy is added or withdrawn while requests may be in flight. Episodes that need a new
        # policy begin after its update.
        self._held: tuple[type[Change], ...] = (AddPolicy, RemovePolicy, OffloadPolicy)
        self.in_flight_updates, self.renderer = engine.in_flight_updates, engine.renderer
        if not self.in_flight_updates:
            self._held += (UpdateWeights,)
        self._served: dict[str, PreTrainedModel] = {}
        self._restore: Callable[[], None] | None = None
        """Function that moves the served models back to their device; None while they are there."""
        self.steps = 0
        """Number of steps so far; its growth shows that the worker is alive."""

    def catch_up(self) -> None:
        """Apply all waiting updates. Call it only while no request is in flight."""
        for change in self.inbox.take():
            self._apply(change)

    def holds_updates(self) -> bool:
        """Return True if an update that later episodes need waits until no request is in flight."""
        return self.inbox.holds(self._held)

    def step(self) -> list[Completion]:
        """Apply the waiting updates, then step the engine."""
        for change in self.inbox.take(held=self._held):
            self._apply(change)
        self.steps += 1
        return guarded(self.engine.step)

    def add(self, request: Request) -> None:
        guarded(self.engine.add, request)

    @property
    def awaiting(self) -> bool:
        return self.engine.awaiting

    def waiting_ids(self) -> Collection[int]:
        return self.engine.waiting_ids()

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        guarded(self.engine.serve, policy, model, end_ids)
        self._served[policy] = model

    def withdraw(self, policy: str) -> None:
        guarded(self.engine.withdraw, policy)
        del self._served[policy]

    def release(self, policy: str) -> None:
        guarded(self.engine.release, policy)

    def forget(self) -> None:
        """Drop the data of earlier requests that the engine keeps."""
        guarded(self.engine.forget)

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        guarded(self.engine.publish, policy, weights, version)

    def sleep(self) -> None:
        guarded(self.engine.sleep)

    def rest(self) -> None:
        """Free the engine's memory on the GPU, and move the served models to main memory.

        An engine that rests already, because its worker got no episodes since, does nothing.
        """
        if self._restore is not None:
            return
        self.sleep()
        distinct = {id(model): model for model in self._served.values()}
        self._restore = offload(distinct.values())

    def wake(self) -> None:
        """Move the served models back; the engine takes its memory with the next request."""
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()

    def drain_metrics(self) -> Mapping[str, float]:
        return self.engine.drain_metrics()

    def close(self) -> None:
        self.engine.close()
