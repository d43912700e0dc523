"""An engine that asks a person for the completions of an agent."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfplay.engines import Engine
from selfplay.engines.messages import MessageRenderer, read
from selfplay.errors import ConfigError
from selfplay.types import Completion, Message, Request, StopReason

Ask = Callable[[str, Sequence[Message]], str]
"""(agent, messages so far) -> the text that the person enters for the agent."""


def news(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the person's last one."""
    own = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return messages[own[-1] + 1 if own else 0 :]


class HumanEngine(Engine):
    """Answers with a person's text; token ids are its UTF-8 bytes, log-probabilities are 0."""

    renderer: MessageRenderer = MessageRenderer()

    def __init__(self, ask: Ask) -> None:
        """`ask` shows the messages to the person and returns the text that was entered."""
        self._ask = ask
        self._waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        """Ask for one completion; further requests stay in the queue."""
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
        """Raise ConfigError, because a person has no weights."""
        raise ConfigError(f"policy {policy!r} is a person and cannot be trained")
