"""A message channel between the agents of an arena: it records messages, or changes what is heard.

Each agent has a copy of the arena, called its ear, that begins with the same task and seed. In an
ear, the other agents have said what the channel lets through, and the agent itself has said its
original words. The agent sees the view of its ear. The true arena receives all original words; it
decides what happens and what is paid. The channel thus changes only what listeners hear.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from selfplay.arena import Arena
from selfplay.types import Action, Observation, Task


class ChannelError(ValueError):
    """Raised if the length of the game depends on what the agents hear.

    A channel cannot change what is heard in such a game.
    """


@dataclass(frozen=True, kw_only=True)
class HeardMessage:
    """A message. `MessageChannel` makes it; ablations and the measure of influence read it."""

    seed: int
    """Seed of the episode."""
    task: str
    """Id of the task."""
    stage: int
    """Index of the stage, from 0."""
    number: int
    """Number of earlier messages of the same speaker in this episode."""
    speaker: str
    """Agent that speaks."""
    text: str
    """Words of the message; empty if the move did not parse."""
    seen: str
    """Text of the speaker's observation."""


Alter: TypeAlias = Callable[[HeardMessage], str]
"""Function from a message to the text that the other agents hear."""


class MessageChannel:
    """An arena with a message channel. It cannot continue from recorded turns (a prefix)."""

    def __init__(
        self, arena: Callable[[], Arena], alter: Alter, record: list[HeardMessage] | None = None
    ) -> None:
        """Args:
        arena: Makes the arena.
        alter: Gives the text that the others hear.
        record: List to which every original message is appended.
        """
        self._make, self._alter, self._record = arena, alter, record
        self._true = arena()
        self._ears: dict[str, Arena] = {}
        self._stages = 0
        self._spoken: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._true, name)

    def begin(self, task: Task, seed: int) -> None:
        """Begin the arena and every ear."""
        self._true.begin(task, seed)
        self._ears = {agent: self._make() for agent in self._true.possible_agents}
        for ear in self._ears.values():
            ear.begin(task, seed)
        self._stages = 0
        self._spoken.clear()

    def view(self, agent: str) -> Observation:
        """Return the observation of the agent's ear: what it saw, and heard through the channel."""
        return self._ears[agent].view(agent)

    def play_stage(self, actions: Mapping[str, Action | None]) -> dict[str, float]:
        """Play a stage. Raises ChannelError if an ear is at another stage than the arena."""
        heard = {words.speaker: self._alter(words) for words in self._said(actions)}
        for agent, ear in self._ears.items():
            if ear.stage != self._true.stage:
                raise ChannelError(
                    f"what {agent} hears ends the game at another time; configure the arena so "
                    "that its length does not depend on what is said"
                )
            others = {speaker: text for speaker, text in heard.items() if speaker != agent}
            ear.play_stage({**actions, **others})
        self._stages += 1
        return self._true.play_stage(actions)

    def _said(self, actions: Mapping[str, Action | None]) -> list[HeardMessage]:
        said = [
            HeardMessage(
                seed=self._true.seed,
                task=self._true.task.id,
                stage=self._stages,
                number=self._spoken[speaker],
                speaker=speaker,
                text=actions[speaker] or "",
                seen=self._ears[speaker].view(speaker).text,
            )
            for speaker in self._true.messengers()
        ]
        self._spoken.update(words.speaker for words in said)
        if self._record is not None:
            self._record += said
        return said


def through(
    arena: Callable[[], Arena], alter: Alter, record: list[HeardMessage] | None = None
) -> Callable[[], Arena]:
    """Return a function that makes the arena with a channel, see `MessageChannel`."""
    return lambda: cast(Arena, MessageChannel(arena, alter, record))


def heard_by(
    arena: Callable[[], Arena],
    words: HeardMessage,
    text: str,
    *,
    task: Task,
    stages: Sequence[Mapping[str, Action | None]],
) -> Arena:
    """Return the arena after these recorded stages, with `text` heard instead of `words`.

    The last of `stages` is the one in which the words were said.
    """
    played = arena()
    played.begin(task, words.seed)
    for number, actions in enumerate(stages):
        played.play_stage({**actions, words.speaker: text} if number == words.stage else actions)
    return played


def intact(words: HeardMessage) -> str:
    """Return the message unchanged."""
    return words.text


def silent(words: HeardMessage) -> str:
    """Return silence: an empty text."""
    return ""


class MessageSwap:
    """An `Alter` that replaces each message by one of the same speaker in another episode.

    The n-th message of a speaker is replaced by its n-th message in the other episode, regardless
    of the stage, and by silence if the speaker has fewer than n messages there.
    """

    def __init__(self, record: Iterable[HeardMessage], partner: Mapping[int, int]) -> None:
        """Args:
        record: All messages of the unchanged episodes.
        partner: Seed of each episode to the seed of the episode whose messages are heard in it.
        """
        self._said = {(words.seed, words.speaker, words.number): words.text for words in record}
        self._partner = partner
        self._asked: list[bool] = []

    def __call__(self, words: HeardMessage) -> str:
        """Return the text that is heard instead of `words`."""
        key = (self._partner[words.seed], words.speaker, words.number)
        self._asked.append(key in self._said)
        return self._said.get(key, "")

    @property
    def unmatched(self) -> float:
        """Fraction of the messages so far without a counterpart in the other episode."""
        return 1 - sum(self._asked) / len(self._asked) if self._asked else 0.0
