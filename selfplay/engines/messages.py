"""Chat messages as they are: for engines that speak text and have no tokens of their own."""

import json
from collections.abc import Sequence

from selfplay.types import Message


class MessageRenderer:
    """Chat messages as the bytes of their JSON: an endpoint takes messages, and no ids."""

    end_ids: tuple[int, ...] = ()

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The messages' bytes."""
        return tuple(json.dumps(list(messages), ensure_ascii=False).encode("utf-8", "replace"))

    def extend(
        self, so_far: tuple[int, ...], completion: tuple[int, ...], messages: Sequence[Message]
    ) -> tuple[int, ...]:
        """Always extends."""
        said = {"role": "assistant", "content": self.text(completion)}
        return self.start([*read(so_far), said, *messages])

    def text(self, completion: Sequence[int]) -> str:
        """The bytes as text."""
        return bytes(completion).decode("utf-8", "replace")


def read(prompt_ids: Sequence[int]) -> list[Message]:
    """The messages that a `MessageRenderer` wrote."""
    messages: list[Message] = json.loads(bytes(prompt_ids).decode("utf-8"))
    return messages
