"""Value types that every layer uses, from `Task` to `Sample`.

Values are frozen and keyword-only. `to_json` and `from_json` convert any of them to plain JSON data
and back. Shapes: P prompt tokens, C completion tokens, G episodes of a group.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import repeat
from operator import attrgetter, call
from typing import Any, Literal, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter

from selfplay.number_array import Floats, Kind, NumberArray, TokenIds

Content: TypeAlias = str | list[dict[str, Any]]
"""Text, or the content parts of the Hugging Face chat format."""

Message: TypeAlias = dict[str, Any]
"""One chat message: {"role": "system" | "user" | "assistant" | "tool", "content": Content}."""

Action: TypeAlias = str
"""An agent's move in an arena, as text. `None` stands for a completion that did not parse."""

Versions: TypeAlias = tuple[tuple[int, int], ...]
"""((version of the weights, number of tokens that they sampled), ...) in the tokens' order."""


@cache
def _slots(kind: Any) -> tuple[Any, list[Any]]:
    """Return a function that reads all fields of a class, and one for each field that sets it."""
    return attrgetter(*kind.__slots__), [getattr(kind, name).__set__ for name in kind.__slots__]


def _state(self: Any) -> Any:
    """Return the fields for a pickle; dataclasses' own function takes several times as long."""
    return _slots(self.__class__)[0](self)


def _restore(self: Any, state: tuple[Any, ...]) -> None:
    setters = _slots(self.__class__)[1]
    if len(state) != len(setters):
        raise ValueError(f"a pickled {type(self).__name__} of another version")
    any(map(call, setters, repeat(self), state))  # a loop takes twice as long


_COMPACT: Mapping[str, Kind] = {
    "prompt_ids": "integers",
    "completion_ids": "integers",
    "logprobs": "floats",
    "loss_mask": "integers",
}

Value = TypeVar("Value")

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Pattern of a character that cannot be encoded: half of a surrogate pair."""
LONGEST_TEXT = 1_000_000
"""Largest number of characters of an observation or an action; a longer action is invalid."""

Unit: TypeAlias = Literal[
    "", "fraction", "count", "reward", "chips", "tokens", "seconds", "nats", "rating", "alarm"
]
"""Unit of a metric. "": a plain number. fraction: between 0 and 1, shown as a percentage. chips:
shown with the word. alarm: 1 if a rule fired, else 0."""
Better: TypeAlias = Literal["higher", "lower", "neither"]
"""Direction of a metric: higher values are better, lower values are better, or neither."""


def role_of(agent: str) -> str:
    """Return the role of an agent: "solver_3" -> "solver"."""
    return agent.rpartition("_")[0]


class InvalidAction(ValueError):
    """Raised by a role for a completion that is no action; the argument names the reason."""


def well_formed(text: str) -> str:
    """Return `text` with lone surrogates replaced, so that it can be encoded and tokenized.

    JSON escapes can bring lone surrogates into a text; other text is not changed.
    """
    return text if text.isascii() else LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def playable(action: object) -> Action | None:
    """Return an action as an arena plays it, well-formed; None if too long or not a string."""
    valid = isinstance(action, str) and len(action) <= LONGEST_TEXT
    return well_formed(str(action)) if valid else None


class StopReason(StrEnum):
    """Reason why a completion ended."""

    STOP = "stop"
    """The policy ended its turn, by an end token or a stop string."""
    LENGTH = "length"
    """The completion reached its token limit."""


class Status(StrEnum):
    """End of an episode: finished, truncated or failed."""

    FINISHED = "finished"
    """The arena reached a terminal state."""
    TRUNCATED = "truncated"
    """The episode reached the rollout's limit on turns, or a prompt left no room for an answer in
    the model's context. The rewards so far count, and policies learn from the episode."""
    FAILED = "failed"
    """The arena or a role raised an error (`Episode.error`); no policy learns from the episode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """Unit and direction of a metric.

    An arena declares one for each metric that it measures; pages, reports and sweeps read it. A
    metric without a declaration is shown as a plain number with no better direction.
    """

    unit: Unit = ""
    """Unit of the values."""
    better: Better = "neither"
    """Direction of better values. If it is "higher", evaluations count a failed episode as 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Content of an episode: together with a seed, the initial state of an arena.

    A curriculum makes tasks; `Arena.setup` reads them. Credit methods may compare within `type`.
    """

    id: str
    """Name of the content: tasks with equal ids are the same task."""
    type: str = "default"
    """Task type, such as deduction. Credit methods may compare returns within a type."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """Data that the arena needs, as plain JSON data."""

    __getstate__, __setstate__ = _state, _restore


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Everything that one agent may see at its turn.

    `Arena.view` makes it; `Role.prompt` renders it into chat messages.
    """

    text: str = ""
    """The observation in words; may be empty if `fields` holds everything."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The same facts by name, for the prompt template of a role."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """An observation with the completion that an agent should give.

    The author of an arena writes demonstrations; warm starts train policies to imitate them.
    """

    role: str
    """Name of the role whose prompt shows the observation."""
    observation: Observation
    """Observation that the agent sees."""
    completion: str
    """Text to imitate."""
    called: tuple[tuple[str, str], ...] = ()
    """Earlier completions of the move that call a tool, each with the tool's result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InformationSet:
    """Everything that an agent knows at a decision of a game.

    Arenas that are small enough to be solved exactly list all of them; exact studies read the list.
    """

    key: str
    """OpenSpiel's information state string."""
    agent: str
    """Name of the agent that decides."""
    observation: Observation
    """The agent's observation: the same for all histories of the set, and for no other history."""
    actions: Mapping[str, int]
    """Every legal action, with OpenSpiel's number of the action."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request for one completion.

    The rollout makes it from a rendered prompt; an engine answers it with a `Completion`.
    """

    id: int
    """Number that is unique among the requests in flight; a later request has a larger one."""
    policy: str
    """Name of the policy that samples."""
    prompt_ids: tuple[int, ...]
    """[P] token ids."""
    seed: int
    """Seed of this request alone; the sample does not depend on the rest of the batch."""
    max_tokens: int
    """Upper limit on C."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Total probability of the most probable tokens that may be sampled; 1: all tokens."""
    top_k: int = 0
    """Number of the most probable tokens that may be sampled; 0: all tokens."""
    min_p: float = 0.0
    """Smallest probability of a token that may be sampled, as a fraction of the largest one."""
    stop: tuple[str, ...] = ()
    """Texts at which the completion ends."""
    keep_stop: bool = False
    """True if the text of the completion keeps the stop string; for engines that return text."""
    decode: Callable[[Sequence[int]], str] | None = field(default=None, repr=False, compare=False)
    """Function from token ids to text, with which engines that return ids find stop strings."""
    agent: str = ""
    """Name of the agent that moves, for scripted engines."""
    observation: Observation = Observation()
    """The agent's observation, for scripted engines."""
    group_seed: int = 0
    """Seed of the group. One worker answers its requests, because their prompts share a prefix."""
    turns_taken: int = 0
    """Number of turns already sampled in this episode; an engine whose batch is full serves the
    request with the highest number first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """An engine's answer to a `Request`. The rollout turns it into a `Turn`."""

    id: int
    """Id of the request."""
    completion_ids: tuple[int, ...]
    """[C] token ids as sampled, with the end-of-turn token if it was sampled."""
    logprobs: tuple[float, ...]
    """[C] nats, under the distribution that was sampled from; see `Turn.logprobs`."""
    stop_reason: StopReason
    """Reason why the completion ended."""
    version: int = 0
    """Version of the weights that sampled the first token."""
    versions: Versions = ()
    """Versions of all tokens if the weights changed during the completion; else empty."""
    text: str | None = None
    """Text of the completion if the engine returns text; if None, the ids are decoded."""
    too_long_reason: str = ""
    """Reason why the prompt does not fit the model, if a remote engine refused it; the completion
    then has no tokens. Else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call of a tool in a completion, with the tool's answer.

    The rollout makes it; records, metrics and pages read it, and a replay takes `result` from it.
    """

    name: str
    """Name of the tool as the policy wrote it; "" if the call did not parse."""
    arguments: str = "{}"
    """Arguments by name as JSON; the raw text if the call did not parse."""
    result: str = ""
    """Text that the agent was shown."""
    error: str = ""
    """Name of the reason why the call failed; "" if it succeeded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One completion of one agent in an episode, with its reward.

    An agent with tools makes a move by one or more turns of one stage: every completion that calls
    tools is a turn, and the last turn has the action. The rollout makes it; credit methods read
    `reward`, and the learner reads `prompt_ids`, `completion_ids`, `logprobs` and `loss_mask`.
    These four may be given as any sequence, and are kept in few bytes; they compare and hash like
    tuples.
    """

    agent: str
    """PettingZoo name of the agent, `<role>_<n>`."""
    role: str
    """Role of the agent."""
    policy: str
    """Name of the policy that plays the agent."""
    version: int
    """Version of the weights that sampled the first token."""
    prompt_ids: TokenIds
    """[P] token ids of the prompt."""
    completion_ids: TokenIds
    """[C] token ids as sampled."""
    logprobs: Floats
    """[C] nats, under the distribution that was sampled from: at the temperature, and normalised
    over the kept tokens of truncated sampling."""
    loss_mask: TokenIds
    """[C] 1 for tokens that the policy itself chose, else 0."""
    temperature: float = 1.0
    """Temperature of the sampling distribution."""
    messages: tuple[Message, ...] = ()
    """Chat messages that this turn added to the agent's prompt."""
    text: str = ""
    """The completion as text, up to a stop string; `completion_ids` are never cut."""
    action: Action | None = None
    """The agent's action; None if the completion did not parse."""
    reward: float = 0.0
    """Sum of the agent's rewards for this turn: those paid from this turn until the agent's next
    move, those paid before its first move if this is that move, and those that
    `Arena.pay(move=...)` gives to it. A turn that calls tools gets 0 from the arena."""
    stage: int = -1
    """Index of the arena's stage, from 0; -1 in records without stages."""
    stop_reason: StopReason = StopReason.STOP
    """Reason why the completion ended."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the arena or the role noted, e.g. the reason why an action was invalid."""
    trainable: bool = True
    """True if the policy may learn from this turn. False if the policy is frozen, if
    `EpisodeSpec.learner` names another policy, or if the arena left the move out."""
    versions: Versions = ()
    """Versions of all tokens if the weights changed during the completion; else empty."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls of the completion with their results."""
    final: bool = True
    """True if the turn has the agent's action; False if the agent was asked again in the same
    stage, with the results of its tool calls."""
    legal: tuple[str, ...] = ()
    """Legal moves that the observation listed; empty if it listed none, or more than 64."""
    spoken: bool = False
    """True if the action is a message that other agents read (see `Arena.messengers`)."""

    def __post_init__(self) -> None:
        for name, kind in _COMPACT.items():
            if type(values := getattr(self, name)) is not NumberArray:
                object.__setattr__(self, name, NumberArray.of(values, kind))

    __getstate__, __setstate__ = _state, _restore

    def spans(self) -> Versions:
        """Return the versions of all tokens."""
        return self.versions or ((self.version, len(self.completion_ids)),)

    @property
    def invalid(self) -> bool:
        """True if the turn should have had an action and has none."""
        return self.final and self.action is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One joint trajectory of all agents.

    The rollout makes it; credit methods, curricula, records and studies read it.
    """

    arena: str
    """Name of the arena."""
    task: Task
    """Task that was played; with `seed` it fixes the initial state."""
    seed: int
    """Seed of the arena's own randomness."""
    turns: tuple[Turn, ...]
    """All turns in time order; turns of one stage in the order of `Arena.acting`."""
    status: Status
    """Finished, truncated or failed."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the arena measured; reports average them over episodes."""
    created: tuple[Task, ...] = ()
    """Verified new tasks of this episode, for the curriculum."""
    error: str = ""
    """The error of a failed episode, or the reason if a prompt was too long, in one line."""
    branch_of: int | None = None
    """Index, in the group, of the episode that this one branched off; None if it did not branch."""
    shared_turns: int = 0
    """Number of leading turns that were replayed from the episode that this one branched off.

    `metrics` and `created` cover only the part of the episode after them.
    """
    policy_map: Mapping[str, str] = field(default_factory=dict)
    """Agent to policy, as in `EpisodeSpec.policy_map`."""
    other_pay: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """Rewards of every agent of the arena in stages in which it did not move, by agent:
    ((stage, reward), ...).

    Stage -1 is the time before the first stage. These rewards are also part of `Turn.reward` if the
    agent has a turn. Empty in old records, which do not have this field.
    """

    __getstate__, __setstate__ = _state, _restore

    def agents(self) -> tuple[str, ...]:
        """Return the agents that took a turn, in the order of their first turns."""
        return tuple(dict.fromkeys(turn.agent for turn in self.turns))

    def moves(self) -> tuple[Turn, ...]:
        """Return the turns with an action, valid or not: those that are no tool calls."""
        return tuple(turn for turn in self.turns if turn.final)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """G episodes of one task and seed, among which credit methods compare returns.

    A sampler makes groups; credit methods, curricula and records read them.
    """

    id: str
    """Name that is unique within a step."""
    episodes: tuple[Episode, ...]
    """[G] sibling episodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A turn with its advantage. A credit method makes it; the learner trains on it."""

    turn: Turn
    """The credited turn."""
    advantage: float | tuple[float, ...]
    """One number for the whole completion, or [C] numbers, one per token."""
    group: str = ""
    """Id of the group of the turn."""
    episode: int = 0
    """Index of the episode within its group."""
    pair: str = ""
    """Id of the preference pair of this sample, for credit methods that make pairs."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type; it is built once, because building it costs most."""
    return TypeAdapter(kind)


def to_json(value: Any) -> Any:
    """Return a dataclass value, such as those of this module, as plain JSON data."""
    return _adapter(value.__class__).dump_python(value, mode="json")


def from_json(kind: type[Value], data: Any) -> Value:
    """Return the value of type `kind` that `to_json` wrote. Raises ValueError for other data."""
    result: Value = _adapter(cast(Any, kind)).validate_python(data)
    return result
