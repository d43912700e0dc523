"""Engines turn requests into completions. One loop drives them all: add, step, deliver, repeat."""

from collections.abc import Mapping
from typing import Any, Protocol

from selfplay.types import Completion, Request


class Engine(Protocol):
    """What samples completions for one or several policies."""

    def add(self, request: Request) -> None:
        """Queue a request."""
        ...

    def step(self) -> list[Completion]:
        """Do some work; return what finished, possibly nothing yet.

        An engine that can only wait for others waits a little in here: the rollout counts the steps
        that finish nothing, and takes too many of them for lost requests.
        """
        ...

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """From now on `policy` samples with these weights (a state dictionary)."""
        ...
