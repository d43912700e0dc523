"""Requests as chat messages, for engines that take text and have no tokens of their own."""

import json
from collections.abc import Sequence

from selfplay.types import Message


class MessageRenderer:
    """Renders chat messages as the bytes of their JSON, for engines that take no token ids."""

    end_ids: tuple[int, ...] = ()

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the bytes of the messages."""
        return tuple(json.dumps(list(messages), ensure_ascii=False).encode("utf-8", "replace"))

    def extend(
        self, so_far: Sequence[int], completion: Sequence[int], messages: Sequence[Message]
    ) -> tuple[int, ...]:
        """Return the bytes of the conversation, the completion and the new messages."""
        answer = {"role": "assistant", "content": self.text(completion)}
        return self.start([*read(so_far), answer, *messages])

    def text(self, completion: Sequence[int]) -> str:
        """Return a completion's bytes as text."""
        return bytes(completion).decode("utf-8", "replace")


def read(prompt_ids: Sequence[int]) -> list[Message]:
    """Return the chat messages that a `MessageRenderer` rendered to these bytes."""
    messages: list[Message] = json.loads(bytes(prompt_ids).decode("utf-8"))
    return messages
