"""Completions of greedy requests, each of which is computed once under the same weights."""

from dataclasses import fields, replace

from selfplay.types import Completion, Request

OWN = frozenset({"id", "seed", "agent", "observation", "group_seed", "turns_taken"})
"""Fields of a request that do not change its greedy completion."""
KEPT = 4096
"""Maximum number of completions that are kept."""

GreedyQuestion = tuple[object, ...]
"""Everything of a request that a greedy completion depends on."""


class GreedyAnswers:
    """Answers greedy requests that are equal to one that is in flight or has been answered.

    `PolicyBatch` asks it about every request and reports every completion.
    """

    def __init__(self) -> None:
        self.ready: list[Completion] = []
        """Completions that were known when their requests came."""
        self._known: dict[GreedyQuestion, Completion] = {}
        self._leaders: dict[GreedyQuestion, int] = {}
        self._followers: dict[int, tuple[GreedyQuestion, list[Request]]] = {}

    def take(self, request: Request) -> bool:
        """Return True if the request needs no computation of its own.

        Its completion then comes from `ready`, or from `finish` of the equal request in flight. If
        the result is False, equal greedy requests wait for this request from now on.
        """
        if request.temperature != 0:
            return False
        question = tuple(
            getattr(request, field.name)
            for field in fields(request)
            if field.compare and field.name not in OWN
        )
        if known := self._known.get(question):
            self.ready.append(replace(known, id=request.id))
        elif (leader := self._leaders.get(question)) is not None:
            self._followers[leader][1].append(request)
        else:
            self._leaders[question] = request.id
            self._followers[request.id] = (question, [])
            return False
        return True

    def finish(self, done: Completion) -> list[Completion]:
        """Return the completions of all requests that waited for this one."""
        if done.id not in self._followers:
            return []
        question, followers = self._followers.pop(done.id)
        if self._leaders.get(question) == done.id:  # no new weights since
            del self._leaders[question]
            self._known[question] = done
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return [replace(done, id=follower.id) for follower in followers]

    def forget(self) -> None:
        """Drop all completions; later requests do not wait for those in flight."""
        self._known, self._leaders = {}, {}
