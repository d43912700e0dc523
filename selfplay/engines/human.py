"""A person as an engine: shown what an agent sees, asked for its words."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfplay.engines.messages import MessageRenderer, read
from selfplay.errors import ConfigError
from selfplay.types import Completion, Message, Request, StopReason

Ask = Callable[[str, Sequence[Message]], str]
"""(agent, all it has seen and said) -> its words."""


def news(messages: Sequence[Message]) -> Sequence[Message]:
    """What has been shown since the person's last words."""
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return messages[said[-1] + 1 if said else 0 :]


class HumanEngine:
    """Answers with what a person says; log-probabilities are 0, ids the words' UTF-8 bytes."""

    renderer = MessageRenderer()

    def __init__(self, ask: Ask) -> None:
        """`ask` shows what there is to see and returns what was said."""
        self._ask = ask
        self._waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        """Ask for one move; others may wait for theirs meanwhile."""
        if not self._waiting:
            return []
        request = self._waiting.popleft()
        text = self._ask(request.agent, read(request.prompt_ids))
        ids = tuple(text.encode("utf-8", "replace"))
        return [
            Completion(
                id=request.id,
                completion_ids=ids,
                logprobs=(0.0,) * len(ids),
                stop_reason=StopReason.STOP,
                text=text,
            )
        ]

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """A person has no weights; raises ConfigError."""
        raise ConfigError(f"policy {policy!r} is a person and cannot be trained")
