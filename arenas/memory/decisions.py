"""Facts that wait for the memory manager, and its decisions on them."""

from collections.abc import Collection, Iterable

from arenas.memory.bank import EVENTS, Fact, MemoryBank, OperationError, read_operations


class ManagerDecisions:
    """Queue of facts, and counts of the operations by which a manager treated them."""

    def __init__(self, bank: MemoryBank, *, most: int, allowed: Collection[str] = EVENTS) -> None:
        """`most` is the maximum number of operations per fact, `allowed` those that may be used."""
        self.bank, self.most, self.allowed = bank, most, allowed
        self.waiting: list[Fact] = []
        self.events = dict.fromkeys(EVENTS, 0)
        self.decided = self.malformed = 0

    def take(self, action: str | None, *, known: Iterable[str]) -> str:
        """Apply the operations of an action for the next fact, and return the action's verdict.

        `known` are the ids of the entries that the manager was shown. Raises OperationError for an
        invalid action, which leaves the bank as it is. The reasons are those of the bank, malformed
        (no action), several_operations (more than `most`) and not_allowed.
        """
        fact = self.waiting.pop(0)
        self.decided += 1
        try:
            if action is None:
                raise OperationError("malformed")
            operations = read_operations(action)
            if len(operations) > self.most:
                raise OperationError("several_operations")
            events = [operation.event for operation in operations] or ["NOOP"]
            if not set(events) <= set(self.allowed):
                raise OperationError("not_allowed")
            self.bank.apply(operations, fact, known=known)
        except OperationError:
            self.malformed += 1
            raise
        for event in events:
            self.events[event] += 1
        return events[0].lower() if len(events) == 1 else "several"

    def metrics(self) -> dict[str, float]:
        """Return invalid actions per fact, and the fraction of operations that are of each kind.

        An invalid action counts as one operation. The result is {} if there was no fact.
        """
        if not self.decided:
            return {}
        all_operations = self.malformed + sum(self.events.values())
        shares = {f"share_{name.lower()}": n / all_operations for name, n in self.events.items()}
        return {"malformed_operations": self.malformed / self.decided, **shares}
