"""A channel between the agents of an arena, which records or changes what they hear of each other.

Each agent has an arena of its own, an ear, begun with the same task and seed: in it the others have
said what the channel lets through, and it itself has said what it said. What an agent sees is the
view of its ear; what happens and what is paid is decided by the arena in which everything was said
as it was. So the speaker keeps its own words, and only what is heard changes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from selfplay.arena import Arena
from selfplay.types import Action, Observation, Task


class ChannelError(ValueError):
    """What is heard decides when the game ends, so that what is heard cannot be changed alone."""


@dataclass(frozen=True, kw_only=True)
class HeardMessage:
    """What an agent said."""

    seed: int
    """Of the episode."""
    task: str
    """The task's id."""
    stage: int
    """The stage in which it was said, from 0."""
    number: int
    """Number of times that its speaker spoke before it in this episode."""
    speaker: str
    """Who said it."""
    text: str
    """What; empty where the move did not parse."""
    seen: str
    """What the speaker saw."""


Alter: TypeAlias = Callable[[HeardMessage], str]
"""What the others hear in place of these words."""


class MessageChannel:
    """An arena with a channel, to be played like the arena itself; not with a prefix."""

    def __init__(
        self, arena: Callable[[], Arena], alter: Alter, record: list[HeardMessage] | None = None
    ) -> None:
        """`record` takes down all that is said, as it is said."""
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
        self._spoken.clear()

    def view(self, agent: str) -> Observation:
        """What the agent has seen and, through the channel, heard."""
        return self._ears[agent].view(agent)

    def play_stage(self, actions: Mapping[str, Action | None]) -> dict[str, float]:
        """Play a stage; raises ChannelError where an ear has come to another one."""
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
    """What makes the arena with a channel."""
    return lambda: cast(Arena, MessageChannel(arena, alter, record))


def heard_by(
    arena: Callable[[], Arena],
    listener: str,
    words: HeardMessage,
    text: str,
    *,
    task: Task,
    stages: Sequence[Mapping[str, Action | None]],
) -> Arena:
    """The listener's ear after these recorded stages, in which it heard `text` for the words.

    `stages` end with the one in which they were said.
    """
    ear = arena()
    ear.begin(task, words.seed)
    for number, actions in enumerate(stages):
        ear.play_stage({**actions, words.speaker: text} if number == words.stage else actions)
    return ear


def intact(words: HeardMessage) -> str:
    """What is heard is what was said."""
    return words.text


def silent(words: HeardMessage) -> str:
    """Nothing is heard."""
    return ""


class MessageSwap:
    """Replace words by those that the same speaker said in another episode.

    The n-th words of a speaker are replaced by its n-th words in the other episode, at whatever
    stage it said them, and by silence if it spoke fewer than n times there.
    """

    def __init__(self, record: Iterable[HeardMessage], partner: Mapping[int, int]) -> None:
        """Args:
        record: All words of the unchanged episodes.
        partner: Seed of an episode to that of the one whose words are heard in it.
        """
        self._said = {(words.seed, words.speaker, words.number): words.text for words in record}
        self._partner = partner
        self._asked: list[bool] = []

    def __call__(self, words: HeardMessage) -> str:
        """Return the words to be heard in place of `words`."""
        key = (self._partner[words.seed], words.speaker, words.number)
        self._asked.append(key in self._said)
        return self._said.get(key, "")

    @property
    def unmatched(self) -> float:
        """The fraction of the words so far that had no words to replace them."""
        return 1 - sum(self._asked) / len(self._asked) if self._asked else 0.0
