"""Engines turn requests into completions. One loop drives them all: add, step, deliver, repeat."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from selfplay.types import Completion, Request

if TYPE_CHECKING:  # a scripted engine needs no torch
    from transformers import PreTrainedModel


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


class ServingEngine(Engine, Protocol):
    """An engine that policies live in: those of a run, and a league's snapshots of them.

    One that holds processes or connections has `close`, one that counts has `drain_counts`, one
    that can give its memory to the learners while they learn has `rest`.
    """

    def serve(self, policy: str, model: "PreTrainedModel", end_ids: Sequence[int]) -> None:
        """Serve one more policy from now on.

        Args:
            policy: Its name.
            model: Its model, with its present weights.
            end_ids: The tokens that end a completion.
        """
        ...

    def withdraw(self, policy: str) -> None:
        """Serve a policy no longer; raises RuntimeError while it has requests in flight."""
        ...

    def release(self, policy: str) -> None:
        """Give back what a policy only needs while it plays."""
        ...
