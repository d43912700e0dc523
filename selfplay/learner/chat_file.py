"""Chats in a file of JSON lines, as examples for fine-tuning.

A line is {"messages": [{"role": "user", "content": "..."}, ...]}. Every message of the assistant is
learned, each with the messages before it as its prompt, except a message with "weight": 0. Other
keys of a line are not read. The file is data: nothing in it is run or rendered as a template.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from selfplay.arena.demonstrations import ExampleSource
from selfplay.errors import ConfigError, RunError, nearest
from selfplay.learner.fine_tune_example import ChatExample
from selfplay.run.files import sha256
from selfplay.run.record_reader import decode
from selfplay.run.untrusted import open_regular
from selfplay.types import Message

ROLES = ("system", "user", "assistant")
"""Roles of messages."""


class ChatFile(ExampleSource):
    """Chats in a file of JSON lines. A config names it as the examples of `FineTune`."""

    def __init__(self, *, path: str) -> None:
        """`path` is the file; a relative path begins in the current folder."""
        self.path = Path(path).expanduser()

    def examples(self) -> Sequence[ChatExample]:
        """Return all examples of the file, in order. Raises ConfigError, with file and line, for a
        line that is not a chat."""
        return self._examples

    def summary(self) -> str:
        """Return one line about the examples."""
        return f"{len(self._examples)} examples in {self.path}"

    def fingerprint(self) -> str:
        """Return the SHA-256 hash of the file's contents."""
        self._open().close()
        return sha256(self.path)

    def _open(self) -> Any:
        try:
            return open_regular(self.path)
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be read ({error.strerror}); name a file of chats, one JSON "
                "object per line"
            ) from error
        except RunError as error:
            raise ConfigError(str(error)) from error

    @cached_property
    def _examples(self) -> Sequence[ChatExample]:
        found: list[ChatExample] = []
        with self._open() as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    found += self._of_line(line, f"{self.path}, line {number}")
        if not found:
            raise ConfigError(f"{self.path}: no message of an assistant to learn")
        return found

    def _of_line(self, line: bytes, where: str) -> Iterator[ChatExample]:
        try:
            data = decode(line)
        except ValueError as error:
            reason = str(error).partition("\n")[0][:200]
            raise ConfigError(f"{where}: not valid JSON ({reason})") from error
        chat = data.get("messages") if isinstance(data, Mapping) else None
        if not isinstance(chat, list) or not chat:
            raise ConfigError(f'{where}: no chat; write {{"messages": [...]}} with messages in it')
        before: list[Message] = []
        for place, message in enumerate(chat):
            role, content, weight = _checked(message, f"{where}, message {place + 1}")
            if role == "assistant" and weight:
                if not before:
                    raise ConfigError(
                        f"{where}: the assistant speaks first; put a prompt before its message"
                    )
                yield ChatExample(messages=tuple(before), completion=content, where=where)
            before.append({"role": role, "content": content})


def _checked(message: Any, where: str) -> tuple[str, str, int]:
    """Return role, text and weight of a message. Raises ConfigError for any other value."""
    if not isinstance(message, Mapping):
        raise ConfigError(f"{where}: no message; write an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ConfigError(f"{where}: unknown role {str(role)[:40]!r}; {nearest(str(role), ROLES)}")
    if not isinstance(content, str):
        raise ConfigError(f"{where}: content is {type(content).__name__}; only text is learned")
    weight = message.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise ConfigError(f"{where}: weight {str(weight)[:40]} does not fit: 0 or 1 is needed")
    return str(role), content, int(weight)
