"""The vocabulary that every layer speaks. This module imports nothing of ours.

Values are frozen and keyword-only. `to_json` and `from_json` take any of them to plain JSON data
and back. Shapes: P prompt tokens, C completion tokens, G episodes of a group.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import TypeAdapter

Content: TypeAlias = str | list[dict[str, Any]]
"""Text, or the content parts of the Hugging Face chat format."""

Message: TypeAlias = dict[str, Any]
"""One chat message: {"role": "system" | "user" | "assistant", "content": Content}."""

Action: TypeAlias = str
"""What an agent does to the arena; `None` stands for an action that did not parse."""

Versions: TypeAlias = tuple[tuple[int, int], ...]
"""((version of the weights, tokens that they sampled), ...) in the order of the tokens."""

Value = TypeVar("Value")

_SURROGATE = re.compile("[\ud800-\udfff]")


Unit: TypeAlias = Literal[
    "", "fraction", "count", "reward", "tokens", "seconds", "nats", "rating", "alarm"
]
"""The unit of a metric. "": a plain number. fraction: of 1, shown as per cent. alarm: 1 if a rule
fired, else 0."""
Better: TypeAlias = Literal["higher", "lower", "neither"]
"""Direction of a metric: whether higher or lower values are better, or neither."""


class InvalidAction(ValueError):
    """A completion that a role cannot read as an action; the argument is the named reason."""


def well_formed(text: str) -> str:
    """`text` with its lone surrogates replaced, so that it can be encoded, tokenized and written.

    JSON escapes can smuggle them in; no other text is changed.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
    return text


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The policy ended its turn."""
    LENGTH = "length"
    """The token limit cut it off."""


class Status(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    """The arena reached a terminal state."""
    TRUNCATED = "truncated"
    """The rollout's limit on turns cut it off."""
    FAILED = "failed"
    """The arena itself broke; the error is in `Episode.error`. Never learned from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """Unit and direction of a metric. An arena declares one for every metric that it measures.

    A metric without a declaration is a plain number, and neither direction is better.
    """

    unit: Unit = ""
    """Unit of the values."""
    better: Better = "neither"
    """Direction in which the values are better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """With a seed, an initial state of an arena. Made by a curriculum, read by `Arena.setup`."""

    id: str
    """Names the content: tasks with equal ids are the same task."""
    type: str = "default"
    """The kind of task; credit methods may compare within it."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What the arena needs, as plain JSON data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What one agent alone may see, made by `Arena.view` and read by `Role.prompt`."""

    text: str = ""
    """The observation in words; may be empty where `fields` says it all."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The same facts by name, for a role's prompt template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """What one agent saw and what it should say: made by an arena's author, for warm starts."""

    role: str
    """Name of the role whose prompt shows the observation."""
    observation: Observation
    """What the agent sees."""
    completion: str
    """The words to imitate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InformationSet:
    """All that an agent knows at a decision: listed by arenas small enough to be solved exactly."""

    key: str
    """OpenSpiel's name of it, its information state string."""
    agent: str
    """Who decides."""
    observation: Observation
    """What it sees: the same for all histories of the set, and for no other."""
    actions: Mapping[str, int]
    """Every legal action to OpenSpiel's number of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One completion asked of an engine."""

    id: int
    """Unique among the requests in flight."""
    policy: str
    """Whose weights sample."""
    prompt_ids: tuple[int, ...]
    """[P] token ids."""
    seed: int
    """Seed of this request alone; the sample does not depend on the rest of the batch."""
    max_tokens: int
    """Upper limit on C."""
    temperature: float = 1.0
    """0 is greedy."""
    agent: str = ""
    """Who asks; scripted engines act on it."""
    observation: Observation = Observation()
    """What the agent sees; scripted engines act on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """An engine's answer to a `Request`."""

    id: int
    """The request's id."""
    completion_ids: tuple[int, ...]
    """[C] token ids as sampled, the end-of-turn token included if it was sampled."""
    logprobs: tuple[float, ...]
    """[C] nats, of the distribution actually sampled from."""
    stop_reason: StopReason
    """Why it ended."""
    version: int = 0
    """Version of the weights that sampled its first token."""
    versions: Versions = ()
    """Of all its tokens, where the weights changed in between; else empty."""
    text: str | None = None
    """The completion's text, where the engine speaks text; else the ids are decoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One policy call by one agent."""

    agent: str
    """PettingZoo name, `<role>_<n>`."""
    role: str
    """The agent's role."""
    policy: str
    """The policy behind it."""
    version: int
    """Version of the weights that sampled its first token."""
    prompt_ids: tuple[int, ...]
    """[P] token ids the policy saw."""
    completion_ids: tuple[int, ...]
    """[C] token ids it produced, as sampled."""
    logprobs: tuple[float, ...]
    """[C] nats, of the distribution sampled from."""
    loss_mask: tuple[int, ...]
    """[C] 1 where the policy itself chose the token."""
    temperature: float = 1.0
    """Temperature it was sampled at."""
    messages: tuple[Message, ...] = ()
    """The chat messages that this turn added to what the agent sees."""
    text: str = ""
    """The completion as text."""
    action: Action | None = None
    """What was done to the arena; None if the completion did not parse."""
    reward: float = 0.0
    """All this agent was paid from this turn until its next."""
    stage: int = -1
    """The arena's stage it was played in, from 0; -1 in records that do not say."""
    stop_reason: StopReason = StopReason.STOP
    """Why the completion ended."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts the arena or the role noted, e.g. the reason an action was invalid."""
    trainable: bool = True
    """Whether its policy may learn from it: false for a frozen one and in another's match."""
    versions: Versions = ()
    """Of all its tokens, where the weights changed in between; else empty."""

    def spans(self) -> Versions:
        """The versions of all its tokens."""
        return self.versions or ((self.version, len(self.completion_ids)),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One joint trajectory of all agents."""

    arena: str
    """The arena's name."""
    task: Task
    """Its initial state, with `seed`."""
    seed: int
    """Seed of the arena's own randomness."""
    turns: tuple[Turn, ...]
    """In time order; agents of one stage in the arena's order."""
    status: Status
    """How it ended."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the arena measured, averaged over episodes in reports."""
    created: tuple[Task, ...] = ()
    """Verified tasks that this episode brought into being, for the curriculum."""
    error: str = ""
    """One line, where `status` is failed."""
    branch_of: int | None = None
    """Where it branched off a sibling: that sibling's index in the group."""
    shared_turns: int = 0
    """Leading turns that were replayed, not played: those it shares with its parent. `metrics` and
    `created` are of what came after them."""
    policy_map: Mapping[str, str] = field(default_factory=dict)
    """Agent to policy, as `Job.policy_map` had it."""
    other_pay: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """Pay of every agent of the arena, ((stage, reward), ...), in stages in which it did not move;
    stage -1 is before the first. The same pay is in `Turn.reward` if the agent has a turn. Empty
    in old records, which do not have it."""

    def agents(self) -> tuple[str, ...]:
        """The agents that took a turn, in order of their first."""
        return tuple(dict.fromkeys(turn.agent for turn in self.turns))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """G episodes that share an initial state."""

    id: str
    """Unique within a step."""
    episodes: tuple[Episode, ...]
    """[G] episodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A turn with its credit, made by a credit method and consumed by the learner."""

    turn: Turn
    """What was sampled."""
    advantage: float | tuple[float, ...]
    """One number for the whole completion, or [C], one per token."""
    group: str = ""
    """Id of the group it came from."""
    episode: int = 0
    """Index of the episode within its group."""
    pair: str = ""
    """Id of the preference pair it belongs to, where a credit method makes pairs."""


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once per type: building one costs more than using it a thousand times."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: Any) -> Any:
    """A value of this module as plain JSON data."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_json(kind: type[Value], data: Any) -> Value:
    """The value of type `kind` that `to_json` wrote; raises ValueError where it does not fit."""
    result: Value = _adapter(kind).validate_python(data)
    return result
