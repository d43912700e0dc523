"""The advised role: any role, with the arena's advice added to its prompt."""

from collections.abc import Mapping

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, Message, Observation


class Advised(Role):
    """Role that adds the observation's `advice`, if there is any, to the prompt of another role."""

    def __init__(self, *, role: Role, style: str = "full") -> None:
        """Args:
        role: Makes the prompt and parses the action.
        style: Name of the prompt style that adds the advice, or the path of a template.
        """
        super().__init__(
            template=load("advised", style),
            memory=role.memory,
            skip_thinking=role.skip_thinking,
            tools=role.tools,
        )
        self.role = role

    def prompt(self, observation: Observation) -> list[Message]:
        """Return the role's messages, with the advice in the last one."""
        *before, last = self.role.prompt(observation)
        advice = observation.fields.get("advice")
        if not advice:
            return [*before, last]
        fields = {"prompt": last["content"], "advice": advice}
        return [*before, *super().prompt(Observation(fields=fields))]

    def parse(self, text: str) -> Action:
        """Return the action that `role` parses."""
        return self.role.parse(text)

    def metrics(self, text: str) -> Mapping[str, float]:
        """Return the metrics of `role`."""
        return self.role.metrics(text)
