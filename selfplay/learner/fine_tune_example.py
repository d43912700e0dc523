"""The examples of fine-tuning: a prompt, and a completion to imitate."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from selfplay.errors import ConfigError
from selfplay.models.demonstration_prompt import prompt_ids
from selfplay.models.renderer import ChatRenderer
from selfplay.role import Role
from selfplay.types import Message, Observation


@dataclass(frozen=True, kw_only=True)
class Example(ABC):
    """A completion to imitate after a prompt.

    A source of examples makes it; `FineTune` reads it.
    """

    completion: str
    """Text to imitate."""
    where: str
    """Place of the example, for errors."""

    @abstractmethod
    def prompt(self, renderer: ChatRenderer) -> tuple[int, ...]:
        """Return the tokens of the prompt."""

    def ids(self, renderer: ChatRenderer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (prompt ids, completion ids with the end token).

        Raises ConfigError, with the place of the example, if it cannot be rendered.
        """
        try:
            completion = renderer.completion_ids(self.completion)
            return self.prompt(renderer), (*completion, renderer.end_ids[0])
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class ChatExample(Example):
    """A message of a chat after the messages before it."""

    messages: tuple[Message, ...]
    """Chat messages of the prompt."""

    def prompt(self, renderer: ChatRenderer) -> tuple[int, ...]:
        """Return the tokens of the messages."""
        return renderer.start(self.messages)


@dataclass(frozen=True, kw_only=True)
class RoleExample(Example):
    """A demonstration after the prompt of its role."""

    role: Role
    """The role, with its tools."""
    observation: Observation
    """View of the role's agent."""
    called: tuple[tuple[str, str], ...] = ()
    """Earlier tool calls of the same move, each with its result."""

    def prompt(self, renderer: ChatRenderer) -> tuple[int, ...]:
        """Return the tokens of the prompt in a run: with the tools and the earlier calls."""
        return prompt_ids(self.role, self.observation, renderer, self.called)
