"""The role: renders an observation into a prompt and parses a completion into an action.

A role keeps no state of an episode.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from types import NoneType
from typing import Any, ClassVar, Literal

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from selfplay.errors import ConfigError, SelfplayError, SettingError, nearest, with_place
from selfplay.sandbox.templates import bounded, check_template
from selfplay.tools.toolbox import Toolbox, check_toolbox
from selfplay.types import (
    Action,
    InvalidAction,
    Message,
    Observation,
    playable,
    well_formed,
)

Memory = Literal["conversation", "none"]

THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)
"""Opening and closing tags of thinking, as models with thinking write them."""


UNNAMED = "unnamed"
"""Reason of an invalid action whose `InvalidAction` names none."""
MOST_KEPT = 4096
"""Largest number of user messages that a role keeps, for observations that come again."""
LONGEST_KEPT = 8192
"""Largest number of characters of a text that is part of what a role keeps."""
LONGEST_LIST = 64
"""Largest number of elements of a list that is part of what a role keeps."""


class BrokenRole(RuntimeError):
    """Raised if a role raises an error other than `InvalidAction`, or if `parse` returns anything
    but a string. The episode fails, and the failure is counted by this class name.

    The message names the role, the method and the error.
    """


class Role:
    """Base class of all roles: renders the prompt from a Jinja template; the whole completion is
    the action.

    An author subclasses it; a config names the subclass. The rollout calls `prompt` before each
    completion and `parse_completion` after it. A subclass overrides `template`; a config may
    replace it. The template sees `text`, the fields of the observation by name, and `fields`, the
    mapping of all of them.
    """

    template: ClassVar[str] = "{{ text }}"
    """Jinja source of the user message."""
    system: ClassVar[str] = ""
    """Text of the system message; empty for no system message."""
    skip_thinking: bool = False
    """True if the role parses only the text after the thinking; a config may replace it."""
    tools: Toolbox | None = None
    """Tools that the agents can call before they answer; a config may replace them."""
    where: str = ""
    """Config key of the role, such as "roles.solver", for errors; "" for a role without one."""

    def __init__(
        self,
        *,
        template: str | None = None,
        system: str | None = None,
        memory: Memory = "none",
        skip_thinking: bool | None = None,
        tools: Toolbox | None = None,
    ) -> None:
        """Args:
        template: Jinja source of the user message; None takes the class's own.
        system: Text of the system message; empty for no system message.
        memory: "conversation" appends each observation to the agent's earlier prompts and
            completions; "none" starts every turn from a fresh prompt.
        skip_thinking: True to parse only the text after the thinking, such as that after
            `</think>`, for models that think before they answer. None takes the class's own
            value, which is False for the roles of this library.
        tools: Tools that the agents can call before they answer; None takes the class's own,
            which the roles of this library do not have.

        Raises ConfigError for tools that are no toolbox, and for a `template` or `system` that is
        no text.
        """
        self.tools = type(self).tools if tools is None else tools
        check_toolbox(self.tools, where=type(self).__name__)
        self._template = type(self).template if template is None else template
        self._system = type(self).system if system is None else system
        for name, text in (("template", self._template), ("system", self._system)):
            if not isinstance(text, str):
                raise SettingError(f"{name} of {type(self).__name__} is {text!r}, not a text")
        self.memory: Memory = memory
        self.skip_thinking = type(self).skip_thinking if skip_thinking is None else skip_thinking
        # A template that draws at random shows one observation in different ways: it is not kept.
        self._random = re.search("random|lipsum", self._template) is not None
        self._rendered: dict[Any, str] = {}

    def set_config_key(self, key: str) -> None:
        """Keep the config key of this role in `where`, for errors."""
        self.where = key

    @property
    def _title(self) -> str:
        """The role for errors: config key, if it has one, and class."""
        kind = type(self).__name__
        return f"{self.where} ({kind})" if self.where else kind

    @cached_property
    def _compiled(self) -> Any:
        environment = ImmutableSandboxedEnvironment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        check_template(self._template, where=self._title)
        try:
            return environment.from_string(self._template)
        except TemplateError as error:
            raise ConfigError(f"{self._title}: template does not parse: {error}") from error

    def prompt(self, observation: Observation) -> list[Message]:
        """Return the chat messages that show `observation`.

        Raises ConfigError if the template does not parse or cannot render, for example because the
        observation lacks a field.
        """
        key = None if self._random else _key_of(observation)
        text = None if key is None else self._rendered.get(key)
        if text is None:
            text = self._render(observation)
            if key is not None and len(text) <= LONGEST_KEPT:
                if len(self._rendered) >= MOST_KEPT:
                    self._rendered.clear()
                self._rendered[key] = text
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, {"role": "user", "content": text}]

    def _render(self, observation: Observation) -> str:
        """Return the text of the user message."""
        fields: Mapping[str, Any] = observation.fields
        shown = {**fields, "fields": fields, "text": observation.text}
        try:
            text: str = bounded(lambda: self._compiled.render(shown))
        except (
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            RecursionError,
            MemoryError,
        ) as error:
            unknown = re.fullmatch("'(\\w+)' is undefined", str(error))
            hint = f"; {nearest(unknown[1], shown)}" if unknown else ""
            raise ConfigError(f"{self._title}: template cannot render: {error}{hint}") from error
        return well_formed(text.strip("\n"))

    def parse(self, text: str) -> Action:
        """Return the action in a completion's text. Raises `InvalidAction(reason)` if there is
        none."""
        return text

    def metrics(self, text: str) -> Mapping[str, float]:
        """Return metrics of a completion, by name; the library averages them per role."""
        return {}

    def parse_completion(self, text: str) -> tuple[Action | None, dict[str, Any]]:
        """Return the action in a completion's text, or None, and the facts to note about it.

        An action that is too long for an arena is invalid (see `selfplay.types.playable`).

        Raises `BrokenRole` if `metrics` or `parse` raises an error other than `InvalidAction`, and
        if `parse` returns anything but a string.
        """
        try:
            text = without_thinking(text) if self.skip_thinking else text
        except InvalidAction as reason:
            return None, {"invalid": str(reason)}
        method = "metrics"
        try:
            noted: dict[str, Any] = dict(self.metrics(text))
            method = "parse"
            action: Any = self.parse(text)
        except SelfplayError:
            raise
        except InvalidAction as reason:
            if method == "parse":
                return None, {**noted, "invalid": str(reason) or UNNAMED}
            raise self.broken(method, reason) from reason
        except Exception as error:  # the author's code may raise any error
            raise self.broken(method, error) from error
        if not isinstance(action, str):
            raise BrokenRole(
                f"{type(self).__name__}.parse returned {type(action).__name__}, not a text; it "
                "raises InvalidAction(reason) where there is no action"
            )
        played = playable(action)
        return played, noted if played is not None else {**noted, "invalid": "too_long"}

    def broken(self, method: str, error: Exception) -> BrokenRole:
        """Return the error that names the method of this role that raised `error`."""
        return BrokenRole(f"{type(self).__name__}.{method} raised {with_place(error)}")


class TaggedRole(Role):
    """A role with a two-part action space: the text between the tags is the action.

    The rest is thought, or a message to other agents. Exactly one pair of tags is valid; no pair,
    several pairs or a crossed pair is invalid. If the last of several actions counted, a policy
    could gain by writing several.
    """

    def __init__(
        self, *, opening: str = "<action_start>", closing: str = "<action_end>", **settings: Any
    ) -> None:
        """Args:
        opening, closing: Tags around the action.
        settings: Settings of `Role`.

        Raises ConfigError for tags that are empty or part of each other.
        """
        super().__init__(**settings)
        if not opening or not closing or opening in closing or closing in opening:
            raise ConfigError(
                f"TaggedRole: tags {opening!r} and {closing!r}: neither may be empty or part of "
                "the other"
            )
        self.opening, self.closing = opening, closing

    def split(self, text: str) -> tuple[str, str]:
        """Return (action, the rest). Raises `InvalidAction` as `split_at_tags` does."""
        return split_at_tags(text, self.opening, self.closing)

    def parse(self, text: str) -> Action:
        """Return the text between the tags. Raises `InvalidAction` as `split_at_tags` does."""
        return self.split(text)[0]


class ThinkingRole(Role):
    """A role that writes `<think>...</think><answer>...</answer>`; the answer is the action.

    This is the format of DeepSeek-R1 and Absolute Zero (2505.03335). Any text before, between or
    after the two blocks other than white space is invalid.
    """

    def __init__(self, *, thinking: bool = True, **settings: Any) -> None:
        """Args:
        thinking: False if the role is to answer at once: its whole text is the answer, without
            the two blocks.
        settings: Settings of `Role`.

        Raises ConfigError if both `thinking` and `skip_thinking` are true.
        """
        super().__init__(**settings)
        self.thinking = thinking
        if thinking and self.skip_thinking:
            raise ConfigError(
                f"{type(self).__name__}: it reads the thinking, so skip_thinking must be false"
            )

    def parse(self, text: str) -> Action:
        """Return the text of the answer block, or the whole text of a role without thinking.

        Raises `InvalidAction`: `no_answer` without `<answer>`, `bad_form` for any other fault.
        """
        if not self.thinking:
            return text.strip()
        # Cut at fixed positions: a regular expression would backtrack endlessly on very many tags.
        before, opened, answer = text.strip().rpartition("<answer>")
        if not opened:
            raise InvalidAction("no_answer")
        before, closed = before.rstrip(), answer.endswith("</answer>")
        thought = before.removeprefix("<think>").removesuffix("</think>")
        answer = answer.removesuffix("</answer>")
        if not closed or before != f"<think>{thought}</think>" or "</answer>" in answer:
            raise InvalidAction("bad_form")
        if "<think>" in thought or "</think>" in thought:
            raise InvalidAction("bad_form")
        return answer.strip()

    def metrics(self, text: str) -> Mapping[str, float]:
        """Return `worked`: 1 if the thought is not empty, else 0; nothing for a role without
        thinking."""
        if not self.thinking:
            return {}
        thought = text.partition("<think>")[2].partition("</think>")[0]
        return {"worked": float(bool(thought.strip()))}


def _key_of(observation: Observation) -> Any:
    """Return a key that only observations with the same user message share; None for fields that
    are no texts, whole numbers or short lists of these."""
    try:
        fields = [(name, *_plain(value)) for name, value in observation.fields.items()]
        return (*_plain(observation.text), *fields)
    except TypeError:
        return None


def _plain(value: Any) -> tuple[Any, ...]:
    """Return the value with its type, because 1 equals True. Raises TypeError for other values."""
    kind = type(value)
    if (kind is str and len(value) <= LONGEST_KEPT) or kind in (int, bool, NoneType):
        return kind, value
    if kind in (list, tuple) and len(value) <= LONGEST_LIST:
        return kind, *map(_plain, value)
    raise TypeError(f"a value of the type {kind.__name__} is not part of a key")


def without_thinking(text: str) -> str:
    """Return the text after the last block of thinking. Raises `InvalidAction` with the reason
    `unfinished_thinking` if a block is not closed."""
    for opening, closing in THINKING:
        text = text.rpartition(closing)[2]
        if opening in text:
            raise InvalidAction("unfinished_thinking")
    return text


def split_at_tags(text: str, opening: str, closing: str) -> tuple[str, str]:
    """Return (the text between the only pair of tags, the rest).

    Raises `InvalidAction` with the reason `no_action`, `several_actions` or `unclosed_action`.
    """
    opened, closed = text.count(opening), text.count(closing)
    if opened == 0 and closed == 0:
        raise InvalidAction("no_action")
    if opened > 1 or closed > 1:
        raise InvalidAction("several_actions")
    before, _, tail = text.partition(opening)
    inside, end, after = tail.partition(closing)
    if not end or not opened:
        raise InvalidAction("unclosed_action")
    return inside.strip(), (before + after).strip()


def fenced(text: str, language: str) -> list[str]:
    """Return the contents of all code fences of one language, in order."""
    return re.findall(rf"```{re.escape(language)}\n(.*?)\n?```", text, re.DOTALL)
