"""Traces: all turns of one agent in one episode, with the answer of its last move."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from selfplay.types import Action, Group, Sample, Status, Task, Turn


class AnsweringArena(Protocol):
    """An arena that reads answers from actions."""

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the answer of an action in canonical form; "" or None without one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All turns of one agent in one episode, with its last answer."""

    group: str
    """Id of the group."""
    episode: int
    """Index of the episode in its group."""
    turns: Sequence[Turn]
    """The turns, in order."""
    answer: str
    """Answer of the last move, in canonical form."""

    def can_learn(self) -> bool:
        """Return True if a turn is trainable."""
        return any(turn.trainable for turn in self.turns)

    def samples(self, pair: str, advantage: float) -> list[Sample]:
        """Return a sample of each trainable turn, all with the same pair and advantage."""
        group, episode = self.group, self.episode
        return [
            Sample(turn=turn, advantage=advantage, group=group, episode=episode, pair=pair)
            for turn in self.turns
            if turn.trainable
        ]


def traces(group: Group, arena: AnsweringArena, roles: Collection[str]) -> list[list[Trace]]:
    """Return for each episode its traces that end with an answer; a failed episode has none.

    `roles` are the roles whose traces are returned; empty: all.
    """
    found: list[list[Trace]] = [[] for _ in group.episodes]
    for index, episode in enumerate(group.episodes):
        if episode.status is Status.FAILED:
            continue
        for agent in episode.agents():
            turns = [turn for turn in episode.turns if turn.agent == agent]
            last = [turn for turn in turns if turn.final][-1:]
            if not last or (roles and last[0].role not in roles):
                continue
            answer = arena.canonical_answer(episode.task, agent, last[0].action)
            if answer:
                trace = Trace(group=group.id, episode=index, turns=turns, answer=answer)
                found[index].append(trace)
    return found
