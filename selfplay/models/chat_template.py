"""The chat template of a tokenizer: it is rendered with fixed settings, and probes find its rules.

Templates differ in more than their control tokens. Some refuse system messages or two messages of
one role, some write the date, some drop the thinking of earlier turns, and some open the thinking
of the next answer. Every rule here is found by rendering a short conversation, not by a model's
name.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Environment, TemplateError, meta

from selfplay.errors import ConfigError, SettingError, nearest
from selfplay.role import THINKING
from selfplay.sandbox.templates import bounded, check_template
from selfplay.types import Message

DATE = datetime(2024, 7, 26)
"""Today's date for all templates, so that the same messages are the same prompt on every day. Llama
3.1's own template has this date as its default."""

DEEPEST = 20
"""Largest depth of lists and mappings in the settings of a template."""

LONGEST_NAME = 100
"""Largest number of characters of the name of a setting."""

RESERVED = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "raise_exception",
        "strftime_now",
    }
)
"""Names that the library or transformers gives to the template itself."""

Tags: TypeAlias = tuple[str, str]
"""Opening and closing tag of thinking."""

_USER: Message = {"role": "user", "content": "x"}
_ANSWER, _THOUGHT, _SYSTEM = "selfplay-answer", "selfplay-thought", "selfplay-system"
_CALL_ID = "123456789"
"""Id of a tool call; Mistral's templates refuse other lengths."""
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Pattern of the tags that mark the assistant's tokens; plain Jinja does not know them."""


class Continuation(NamedTuple):
    """The text of a conversation after an assistant's answer."""

    text: str
    """Text from the end of the answer to the end of the next generation prompt."""
    kept: bool
    """True if the template keeps the generation prompt and the answer before it as they were."""


def require_template(tokenizer: Any, *, where: str) -> None:
    """Raise ConfigError for a tokenizer without a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"{where}: its tokenizer has no chat template; set its chat_template to a .jinja "
            "file with one, or choose an instruct model"
        )


class ChatTemplate:
    """A chat template with its settings, and the rules that it has for conversations.

    `ChatRenderer` makes one for its tokenizer.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        where: str,
        settings: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Args:
            tokenizer: Hugging Face tokenizer.
            where: Name of the policy in errors.
            settings: Values by the name of a variable of the template, as `check_settings` takes
                them.
            tools: Descriptions of tools that the template shows.

        Raises ConfigError without a chat template, for a template that cannot be rendered, and for
        a setting that the template does not read.
        """
        require_template(tokenizer, where=where)
        for source in _sources(tokenizer):
            check_template(source, where=where)
        self._tokenizer, self._where = tokenizer, where
        self._settings: dict[str, Any] = {"strftime_now": DATE.strftime}
        if tools:
            self._settings["tools"] = [dict(tool) for tool in tools]
        self.folds_system = self.merges_roles = False
        if settings:
            self._set(settings)
        self.generation_prompt = self.render([_USER], generate=True)
        """Prompt of one user message, from its first token to the generation prompt."""
        self.opening = _opening(self.generation_prompt)
        """Tag of thinking that the generation prompt opens, with the white space after it."""
        self.folds_system = not self._keeps_system()
        """True if the text of a system message is put before the next user message."""
        self.merges_roles = not self._renders([_USER, _USER])
        """True if neighbouring messages of one role are merged."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the user about messages that the template cannot take as they are."""
        found = []
        if self.folds_system:
            found.append(
                f"{self._where}: its chat template has no place for a system message, so the "
                "text of a system message is put before that of the user message after it"
            )
        return tuple(found)

    def render(self, messages: Sequence[Message], *, generate: bool) -> str:
        """Return the text of a conversation; raise ConfigError if the template refuses it.

        Args:
            messages: Chat messages with a text as content.
            generate: True to end with the generation prompt of the assistant.
        """
        placed = _folded(messages) if self.folds_system else list(messages)
        if self.merges_roles:
            placed = _merged(placed)
        try:
            return bounded(
                lambda: str(
                    self._tokenizer.apply_chat_template(
                        placed, add_generation_prompt=generate, tokenize=False, **self._settings
                    )
                )
            )
        except (
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RecursionError,
            MemoryError,
        ) as error:
            roles = ", ".join(message["role"] for message in messages)
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"{self._where}: its chat template refuses messages of {roles}: {reason}"
            ) from error

    def after_answer(self) -> str:
        """Return the text that the template writes after the last answer of a conversation."""
        answer = {"role": "assistant", "content": _ANSWER}
        return self.render([_USER, answer], generate=False).rpartition(_ANSWER)[2]

    def written(self) -> str:
        """Return the template's source and rendered short conversations, one after the other.

        `ChatRenderer` searches this text for the control tokens that the template writes. The
        conversations show tokens that the template puts together, such as '<|' + role + '|>'. The
        source shows the tokens of messages that this library never renders.
        """
        found = _sources(self._tokenizer)
        system, answer = {"role": "system", "content": "x"}, {"role": "assistant", "content": "x"}
        result = {"role": "tool", "name": "x", "tool_call_id": _CALL_ID, "content": "x"}
        talks: list[list[Message]] = [[system, _USER, answer, _USER, answer], [_USER, result]]
        forms: tuple[Any, ...] = ({}, "{}")  # of the arguments; templates take one of them
        for arguments in forms:
            function = {"name": "x", "arguments": arguments}
            call = {"id": _CALL_ID, "type": "function", "function": function}
            talks.append([_USER, {**answer, "content": "", "tool_calls": [call]}, result])
        for talk, generate in product(talks, (True, False)):
            with suppress(ConfigError):  # a template may refuse roles and tool calls
                found.append(self.render(talk, generate=generate))
        return "\n".join(found)

    def continuation(self, messages: Sequence[Message], tags: Tags | None) -> Continuation | None:
        """Return the text after an answer, with new messages and the generation prompt.

        None if the template drops answers.

        Args:
            messages: The new messages.
            tags: Tags of the thinking in the answer; None for an answer without finished thinking.
        """
        thought = f"{tags[0]}\n{_THOUGHT}\n{tags[1]}\n\n" if tags else self.opening
        said = thought + _ANSWER
        whole = self.render(
            [_USER, {"role": "assistant", "content": said}, *messages], generate=True
        )
        before, found, text = whole.partition(_ANSWER)
        if not found:
            return None
        prompt = self.generation_prompt + said.removeprefix(self.opening)
        # Templates trim contents; tokens that were sampled keep their white space.
        return Continuation(text, kept=_dense(before + found) == _dense(prompt))

    def _set(self, settings: Mapping[str, Any]) -> None:
        """Add the settings; raise ConfigError for one that the template does not read."""
        reads = self._variables()
        for name, value in settings.items():
            where = f"{self._where}: chat_template_kwargs.{name}"
            if name in reads:
                self._settings[name] = value
            elif name == "date_string" and "strftime_now" in reads:
                try:
                    self._settings["strftime_now"] = datetime.fromisoformat(str(value)).strftime
                except ValueError as error:
                    raise ConfigError(
                        f"{where}: {value!r} does not fit: its chat template formats the date "
                        "itself, so write YYYY-MM-DD"
                    ) from error
            else:
                own = sorted(reads - RESERVED)
                hint = nearest(name, own) if own else "it reads no setting"
                raise ConfigError(f"{where}: its chat template does not read {name!r}; {hint}")

    @property
    def knows_tools(self) -> bool:
        """True if the template reads descriptions of tools."""
        return "tools" in self._variables()

    def _variables(self) -> set[str]:
        """Return the names that the template reads from its settings."""
        try:
            source = _GENERATION.sub("", self._tokenizer.get_chat_template())
            environment = Environment(extensions=["jinja2.ext.loopcontrols"])
            found = meta.find_undeclared_variables(environment.parse(source))
        except (TemplateError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"{self._where}: its chat template cannot be read: {reason}"
            ) from error
        return found - set(environment.globals)

    def _renders(self, messages: Sequence[Message]) -> bool:
        try:
            self.render(messages, generate=True)
        except ConfigError:
            return False
        return True

    def _keeps_system(self) -> bool:
        """Return True if a system message stays in its place while the conversation continues.

        Some templates refuse system messages, some ignore them, and some write their text before
        the last user message, so that it moves with every turn.
        """
        answer = {"role": "assistant", "content": _ANSWER}
        messages = [{"role": "system", "content": _SYSTEM}, _USER]
        if not self._renders(messages) or not self._renders([*messages, answer, _USER]):
            return False
        first = self.render(messages, generate=True)
        later = self.render([*messages, answer, _USER], generate=True)
        return _SYSTEM in first and _SYSTEM in later.partition(_ANSWER)[0]


def _sources(tokenizer: Any) -> list[str]:
    """Return the sources of all chat templates of a tokenizer."""
    templates = tokenizer.chat_template
    return [*map(str, templates.values() if isinstance(templates, Mapping) else [templates])]


def check_settings(settings: Mapping[str, Any], *, where: str) -> None:
    """Raise SettingError, in one line, for a setting that no chat template can be given.

    Settings are plain data, as JSON has it, and do not replace variables that the library sets.

    Args:
        settings: Values by the name of a variable of the template.
        where: Key of the settings, for errors.
    """
    for name, value in settings.items():
        shown = repr(name)[:60]
        if not isinstance(name, str) or not name.isidentifier() or len(name) > LONGEST_NAME:
            raise SettingError(f"{where}: {shown} is not the name of a variable of a template")
        at = f"{where}.{name}"
        if name in RESERVED or name.endswith(("_token", "_tokens")):
            raise SettingError(f"{at}: the library sets {name!r} itself; remove it")
        _check_plain(value, where=at, depth=0)


def _check_plain(value: Any, *, where: str, depth: int) -> None:
    if depth > DEEPEST:
        raise SettingError(f"{where}: nested more than {DEEPEST} deep")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise SettingError(f"{where}: the key {key!r} does not fit: text is needed")
            _check_plain(inner, where=f"{where}.{key}", depth=depth + 1)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            _check_plain(inner, where=f"{where}.{place}", depth=depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise SettingError(f"{where}: {value} does not fit: a finite number is needed")
    elif value is not None and not isinstance(value, bool | int | float | str):
        kind = type(value).__name__
        raise SettingError(
            f"{where}: a {kind} does not fit: text, a number, true or false is needed"
        )


def _opening(prompt: str) -> str:
    """Return the tag of thinking that a prompt ends with, and the white space after it; "" if the
    prompt ends otherwise."""
    bare = prompt.rstrip()
    for opening, _ in THINKING:
        if bare.endswith(opening):
            return prompt[len(bare) - len(opening) :]
    return ""


def _folded(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each system text before the text of the next user message."""
    placed: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            text = "\n\n".join([*waiting, message["content"]])
            placed.append({**message, "content": text})
            waiting = []
        else:
            placed.append(message)
    if waiting:
        placed.append({"role": "user", "content": "\n\n".join(waiting)})
    return placed


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with neighbours of one role as one message."""
    placed: list[Message] = []
    for message in messages:
        if placed and placed[-1]["role"] == message["role"]:
            text = f"{placed[-1]['content']}\n\n{message['content']}"
            placed[-1] = {**placed[-1], "content": text}
        else:
            placed.append(message)
    return placed


def _dense(text: str) -> str:
    """Return the text without white space."""
    return "".join(text.split())
