"""The order of the requests that wait for a place in an engine's batch."""

import heapq

from selfplay.types import Request


class RequestQueue:
    """Requests that wait: those of the episodes that have taken the most turns come first.

    The prompt of a later turn begins with tokens whose keys and values the engine has just
    computed. If all episodes took their first turns before any took its second one, these keys and
    values would be evicted before they are used. Among requests after equally many turns, the
    earlier one is first. A sample does not depend on the order, because each request has its own
    seed.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Add a request; one that was taken out comes back to its place."""
        heapq.heappush(self._heap, (*order(request), request))

    def first(self) -> Request:
        """Return the first request."""
        return self._heap[0][-1]

    def pop(self) -> Request:
        """Remove and return the first request."""
        return heapq.heappop(self._heap)[-1]

    def ids(self) -> list[int]:
        """Return the ids of all requests."""
        return [number for _, number, _ in self._heap]


def order(request: Request) -> tuple[int, int]:
    """Return the key of a request: the one with the smallest key is served first."""
    return -request.turns_taken, request.id
