"""An engine that asks a person for the completions of an agent."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfplay.engines import Engine
from selfplay.engines.messages import MessageRenderer, read
from selfplay.errors import ConfigError
from selfplay.types import Completion, Message, Request, StopReason


@dataclass(frozen=True, kw_only=True)
class HumanQuestion:
    """A request for a person's move. `HumanEngine` makes it; the terminal and the page show it."""

    agent: str
    """The person's agent."""
    messages: Sequence[Message]
    """All messages to the agent so far."""
    legal: Sequence[str] = ()
    """Legal moves that the observation lists; empty if it lists none."""
    refused: str = ""
    """Reason why the person's last text for this move is not a legal move; empty the first time."""


Ask = Callable[[HumanQuestion], str | None]
"""Function that shows a question and returns the text that the person enters; None if the person
has left, and the move is then an empty text."""
Refusal = Callable[[Request, str], str]
"""(request, text) -> the reason why the text is not a legal move; empty for a legal move."""


def news(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the person's last one."""
    own = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return messages[own[-1] + 1 if own else 0 :]


class HumanEngine(Engine):
    """Answers with a person's text; token ids are its UTF-8 bytes, log-probabilities are 0."""

    renderer: MessageRenderer = MessageRenderer()

    def __init__(self, ask: Ask, refusal: Refusal = lambda request, text: "") -> None:
        """Args:
        ask: Shows the question to the person and returns the text that was entered.
        refusal: Checks the text; the person is asked again as long as it gives a reason.
        """
        self._ask, self._refusal = ask, refusal
        self._waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        """Ask for one completion; further requests stay in the queue."""
        if not self._waiting:
            return []
        request = self._waiting.popleft()
        text = self._text(request)
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

    def _text(self, request: Request) -> str:
        """Ask until the person enters a legal move, or leaves."""
        legal = request.observation.fields.get("legal")
        listed = legal if isinstance(legal, list | tuple) else ()
        question = HumanQuestion(
            agent=request.agent,
            messages=read(request.prompt_ids),
            legal=tuple(map(str, listed)),
        )
        while True:
            text = self._ask(question)
            if text is None:
                return ""
            refused = self._refusal(request, text)
            if not refused:
                return text
            question = replace(question, refused=refused)

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Raise ConfigError, because a person has no weights."""
        raise ConfigError(f"policy {policy!r} is a person and cannot be trained")
