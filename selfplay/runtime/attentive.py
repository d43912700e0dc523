"""A worker's engine, which takes in what the driver tells between two of its steps."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Any

from transformers import PreTrainedModel

from selfplay.engines import ServingEngine
from selfplay.errors import EngineFailed, SelfplayError, StalledError, one_line
from selfplay.runtime.changes import Change, Load, Publish, Release, Withdraw
from selfplay.types import Completion, Request


class EngineDied(RuntimeError):
    """An engine broke. The worker that has it is of no more use: another takes its place."""


class Inbox:
    """Changes that wait to be followed, in the order in which the driver told of them."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._number = 0
        self._came = Condition()

    def put(self, number: int, change: Change) -> None:
        """The change of this number has come."""
        with self._came:
            self._changes.append(change)
            self._number = max(self._number, number)
            self._came.notify_all()

    def begin(self, number: int, changes: Sequence[Change]) -> None:
        """What was told before there was this inbox; what was told since may have come already."""
        with self._came:
            self._changes.extendleft(reversed(changes))
            self._number = max(self._number, number)
            self._came.notify_all()

    def wait(self, number: int, timeout: float) -> None:
        """Return when all changes up to this number have come; StalledError where they do not."""
        with self._came:
            if not self._came.wait_for(lambda: self._number >= number, timeout):
                raise StalledError(
                    f"runtime: waited {timeout:g} s for change {number} of the driver"
                )

    def take(self, *, held: tuple[type[Change], ...] = ()) -> list[Change]:
        """What can be followed now, without changes of the kinds in `held` and those of the same
        policies behind them."""
        with self._came:
            found, left, names = [], deque[Change](), set()
            for change in self._changes:
                name = None if isinstance(change, Load) else change.policy
                if isinstance(change, held) or name in names:
                    names.add(name)
                    left.append(change)
                else:
                    found.append(change)
            self._changes = left
            return found


class AttentiveEngine:
    """Serves by another engine. What breaks in that one is raised as EngineDied."""

    def __init__(
        self,
        engine: ServingEngine,
        inbox: Inbox,
        follow: Callable[[Change], None],
        *,
        partial: bool = False,
    ) -> None:
        """Args:
        engine: What serves.
        inbox: Where changes come in.
        follow: Makes a change.
        partial: Whether completions in flight go on under new weights.
        """
        self.engine, self.inbox, self._follow = engine, inbox, follow
        # Nobody is withdrawn while requests may be in flight.
        self._held: tuple[type[Change], ...] = (Withdraw, Release)
        if not partial:
            self._held += (Publish,)
        self.steps = 0
        """Steps so far: a sign of life."""

    def catch_up(self) -> None:
        """Follow all that has come in; nothing may be in flight."""
        for change in self.inbox.take():
            self._follow(change)

    def step(self) -> list[Completion]:
        """A step with the newest weights."""
        for change in self.inbox.take(held=self._held):
            self._follow(change)
        self.steps += 1
        return self._asked(self.engine.step)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._asked(self.engine.add, request)

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy."""
        self._asked(self.engine.serve, policy, model, end_ids)

    def withdraw(self, policy: str) -> None:
        """Serve a policy no longer."""
        self._asked(self.engine.withdraw, policy)

    def release(self, policy: str) -> None:
        """Give back what a policy only needs while it plays."""
        self._asked(self.engine.release, policy)

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Sample with these weights from now on."""
        self._asked(self.engine.publish, policy, weights, version)

    def drain_counts(self) -> Mapping[str, float]:
        """What the engine counted."""
        counts: Mapping[str, float] = getattr(self.engine, "drain_counts", dict)()
        return counts

    def close(self) -> None:
        """Release what the engine holds."""
        getattr(self.engine, "close", lambda: None)()

    @staticmethod
    def _asked(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except EngineFailed as error:
            raise EngineDied(str(error)) from error
        except SelfplayError:
            raise
        except Exception as error:
            raise EngineDied(one_line(error)) from error
