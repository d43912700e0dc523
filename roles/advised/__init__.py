"""The advised role: any role, told what to mind where the arena has advice for it."""

from collections.abc import Mapping

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, Message, Observation


class Advised(Role):
    """Shows the observation's `advice` below another role's prompt; without advice, that prompt."""

    def __init__(self, *, role: Role, style: str = "full") -> None:
        """`role` makes the prompt and reads the action; `style` names how advice is shown."""
        super().__init__(template=load("advised", style), memory=role.memory)
        self.role = role

    def prompt(self, observation: Observation) -> list[Message]:
        """The role's messages, with the advice in the last of them."""
        *before, last = self.role.prompt(observation)
        advice = observation.fields.get("advice")
        if not advice:
            return [*before, last]
        fields = {"prompt": last["content"], "advice": advice}
        return [*before, *super().prompt(Observation(fields=fields))]

    def parse(self, text: str) -> Action:
        """The role's action."""
        return self.role.parse(text)

    def metrics(self, text: str) -> Mapping[str, float]:
        """The role's figures."""
        return self.role.metrics(text)
