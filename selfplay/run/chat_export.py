"""Turns of recorded episodes as chats for supervised fine-tuning.

A line of the export is one turn: {"messages": [...], "metadata": {...}}. The messages are the
agent's prompt and, last, what the agent said. Earlier answers in a conversation have "weight": 0,
because they are turns of their own. A tool call is an example too: the results of calls are
messages of the prompt after it. Tools that only the chat template describes are not in the export,
because the record has the messages and not the template's text. The export reads data only: it
imports no name of the run.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfplay.errors import ConfigError, RunError, nearest
from selfplay.run.config_data import config_data
from selfplay.run.directory import Run
from selfplay.run.record_reader import Recorded, episodes_of, recorded_steps
from selfplay.types import Message, Status, StopReason, Turn

Key = tuple[int, int, str]
"""(step, line of the step's file, agent): the turns of one agent in one episode."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The turns of a run that are exported. The command `export` makes it."""

    role: str | None = None
    """Role of the agents; None for all roles."""
    first: int | None = None
    """First step; None for the first recorded one."""
    last: int | None = None
    """Last step; None for the last recorded one."""
    min_reward: float | None = None
    """Smallest sum of an agent's rewards in an episode."""
    best: float | None = None
    """Fraction of the trajectories (one agent in one episode) of each role that is exported, those
    with the largest returns first."""

    def __post_init__(self) -> None:
        if self.best is not None and not 0 < self.best <= 1:
            raise ConfigError(f"--best {self.best:g}: a fraction above 0 and at most 1 is needed")
        if self.min_reward is not None and math.isnan(self.min_reward):
            raise ConfigError("--min-reward nan: a number is needed")
        if self.min_reward is not None and self.best is not None:
            raise ConfigError("--min-reward and --best: choose one of them")
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ConfigError(f"--steps {self.first}:{self.last}: no step lies between these")


@dataclass(kw_only=True)
class ChatExport:
    """Chats of a run's recorded turns. The command `export` makes it and writes its lines."""

    run: Path
    """Folder of the run."""
    selection: Selection
    """Choice of turns."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason to number of chosen turns that are no examples, complete after `lines`."""

    def __post_init__(self) -> None:
        Run.open(self.run)
        self.name = self.run.resolve().name
        known = recorded_steps(self.run)
        if not known:
            raise RunError(
                f"{self.run}: no episodes are recorded; run.episodes_every=1 records each step"
            )
        low, high = self.selection.first, self.selection.last
        self.steps = [
            step
            for step in known
            if (low is None or step >= low) and (high is None or step <= high)
        ]
        if not self.steps:
            raise RunError(
                f"{self.run}: --steps names no recorded step; {known[0]} to {known[-1]} are there"
            )
        self._conversing = _conversing_roles(self.run)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the chats in the order of the record. Raises RunError if no turn is chosen."""
        chosen = self._chosen()
        written: set[tuple[int, str, int, Sequence[int]]] = set()
        for record in self._records():
            for place, turn, prompt in self._turns(record):
                reward = chosen.get((record.step, record.line, turn.agent))
                if reward is None:
                    continue
                # A branch begins with turns of a sibling, which are exported once.
                shared = (record.step, record.group, place, turn.completion_ids)
                if place < record.episode.shared_turns and shared in written:
                    continue
                written.add(shared)
                if problem := _problem(turn, prompt):
                    self.left_out[problem] += 1
                    continue
                yield {
                    "messages": [*prompt, {"role": "assistant", "content": turn.text}],
                    "metadata": {
                        "run": self.name,
                        "step": record.step,
                        "episode": f"{record.group}/{record.member}",
                        "role": turn.role,
                        "agent": turn.agent,
                        "policy": turn.policy,
                        "reward": reward,
                    },
                }

    def _records(self) -> Iterator[Recorded]:
        for step in self.steps:
            for record in episodes_of(self.run, step):
                if record.episode.status is not Status.FAILED:
                    yield record

    def _turns(self, record: Recorded) -> Iterator[tuple[int, Turn, list[Message]]]:
        """Yield (index, turn, prompt messages) of an episode's turns."""
        latest: dict[str, tuple[Turn, list[Message]]] = {}
        for place, turn in enumerate(record.episode.turns):
            prompt = list(turn.messages)
            if turn.agent in latest and self._goes_on(latest[turn.agent][0], turn):
                before, earlier = latest[turn.agent]
                said = {"role": "assistant", "content": before.text, "weight": 0}
                prompt = [*earlier, said, *prompt]
            latest[turn.agent] = turn, prompt
            yield place, turn, prompt

    def _goes_on(self, before: Turn, turn: Turn) -> bool:
        """Return True if the prompt of a turn contains the agent's turn before it.

        The token ids show this, unless the chat template renders the conversation anew. Then the
        result is True if the role remembers the conversation (`memory`) or `before` calls tools.
        """
        start = (*before.prompt_ids, *before.completion_ids)
        return (
            turn.prompt_ids[: len(start)] == start
            or turn.role in self._conversing
            or not before.final
        )

    def _chosen(self) -> dict[Key, float]:
        """Return the returns of the agents whose turns are exported, by episode.

        A return counts all turns of the agent, also those that no policy learns from.
        """
        found: dict[str, dict[Key, float]] = {}
        for record in self._records():
            learning = {turn.agent for turn in record.episode.turns if turn.trainable}
            for turn in record.episode.turns:
                if turn.agent in learning:
                    key = (record.step, record.line, turn.agent)
                    rewards = found.setdefault(turn.role, {})
                    rewards[key] = rewards.get(key, 0.0) + turn.reward
        if not found:
            raise RunError(f"{self.run}: no recorded turn is of a policy that learns")
        role, least, best = self.selection.role, self.selection.min_reward, self.selection.best
        if role is not None and role not in found:
            raise RunError(f"{self.run}: --role {role}: no such turns; {nearest(role, found)}")
        chosen: dict[Key, float] = {}
        for name in found if role is None else [role]:
            ordered = sorted(found[name].items(), key=lambda each: (-each[1], each[0]))
            # Rounding makes 0.28 times 25 larger than 7, so a little is subtracted.
            count = len(ordered) if best is None else math.ceil(best * len(ordered) - 1e-9)
            chosen |= {
                key: reward for key, reward in ordered[:count] if least is None or reward >= least
            }
        if not chosen:
            raise RunError(f"{self.run}: no episode has a reward of at least {least}")
        return chosen


def _problem(turn: Turn, prompt: Sequence[Message]) -> str:
    """Return the reason why a turn is no example, or ""."""
    if not turn.trainable:
        return "that no policy learns from"
    if turn.invalid:
        return "without a valid action"
    if turn.stop_reason is StopReason.LENGTH:
        return "cut off at the token limit"
    if not turn.messages:
        return "without a recorded prompt"
    if not all(isinstance(message.get("content"), str) for message in prompt):
        return "with content that is no text"
    return ""


def _conversing_roles(run: Path) -> frozenset[str]:
    """Return the roles that the run's config lets remember the conversation."""
    roles = config_data(run).get("roles")
    if not isinstance(roles, dict):
        return frozenset()
    return frozenset(
        str(name)
        for name, node in roles.items()
        if isinstance(node, dict) and node.get("memory") == "conversation"
    )
