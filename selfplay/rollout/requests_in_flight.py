"""A request in flight, with the data that the rollout needs when its completion arrives."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from selfplay.rollout.agent_spec import AgentSpec
from selfplay.rollout.episode_runner import EpisodeRunner
from selfplay.types import Message, Request, ToolCall, Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestInFlight:
    """A request that no engine has answered yet.

    `Rollout` makes it, and reads it when the completion arrives.
    """

    runner: EpisodeRunner
    """Runner of the episode that waits for the completion."""
    agent: str
    """The agent that will make the move."""
    agent_spec: AgentSpec
    """Role, policy and sampling limits of the agent."""
    request: Request
    """The request to the engine."""
    messages: tuple[Message, ...]
    """Messages that the request added to the agent's context."""
    spoken: bool
    """True if the action is a message that other agents read."""


InFlight: TypeAlias = dict[int, RequestInFlight]
"""Requests in flight by their id."""
Calling: TypeAlias = tuple[RequestInFlight, Turn]
"""A completion that calls tools: its request and its turn."""
Answered: TypeAlias = tuple[Calling, tuple[ToolCall, ...]]
"""A completion that calls tools, with all its answers."""


def begun_episodes(
    live: Collection[EpisodeRunner], in_flight: InFlight, waiting_ids: Iterable[int]
) -> int:
    """Return the number of live episodes that engines have begun to sample.

    An episode has not begun if none of its turns is sampled and at least one of its requests waits
    for room in an engine's batch.

    Args:
        live: Episodes that are in memory and have not ended.
        in_flight: Requests in flight.
        waiting_ids: Ids of the requests for which the engines' batches have no room.
    """
    asked = (in_flight[number].runner for number in waiting_ids if number in in_flight)
    return len(live) - len(
        {runner for runner in asked if runner in live and not runner.sampled_turns}
    )


def waiting_episodes(
    live: Collection[EpisodeRunner], in_flight: InFlight, calling: Iterable[Calling]
) -> set[EpisodeRunner]:
    """Return the live episodes for which no engine computes anything, because they wait for tools.

    Args:
        live: Episodes that have begun and not ended.
        in_flight: Requests in flight.
        calling: Completions whose calls are not answered, or whose answers no engine has yet.
    """
    found = {asked.runner for asked, _ in calling}
    if found:
        found = found.intersection(live) - {asked.runner for asked in in_flight.values()}
    return found
