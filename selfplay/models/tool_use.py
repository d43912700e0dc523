"""The tools of a role, its calls and their results in the conversations of one policy.

A chat template that knows tools describes them itself and frames the results; its format of calls
is found by rendering a call. For other templates, and for engines without one, a system message
describes the tools, and results are user messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from selfplay.errors import ConfigError
from selfplay.models.renderer import ChatRenderer, Renderer
from selfplay.role import without_thinking
from selfplay.tools.call_format import (
    CallFormat,
    Hermes,
    Llama,
    ParsedCall,
    Tags,
    defused,
    tool_messages,
)
from selfplay.tools.toolbox import Toolbox
from selfplay.types import InvalidAction, Message, ToolCall

_RESULT = "selfplay-result"


class ToolUse:
    """The tools of a role in the conversations of one policy.

    The rollout makes one for every pair of a toolbox and a renderer.
    """

    def __init__(self, toolbox: Toolbox, renderer: Renderer) -> None:
        """Args:
        toolbox: Tools of the role.
        renderer: Renderer of the policy, without tools.
        """
        self.toolbox, self.base = toolbox, renderer
        self.renderer = renderer
        """Renderer of the prompts."""
        self.native = False
        """True if the chat template describes the tools and frames the results."""
        self._instructions = ""
        self.format: CallFormat
        functions = toolbox.functions
        if toolbox.format != "tags" and isinstance(renderer, ChatRenderer):
            equipped = renderer.with_tools(functions) if renderer.template.knows_tools else renderer
            native = _native_format(equipped, functions)
            if native and (toolbox.format == "auto" or isinstance(native, Hermes)):
                self.renderer = equipped if toolbox.describe else renderer
                self.format, self.native = native, True
        if not self.native:
            own = (
                Hermes()
                if toolbox.format == "hermes"
                else Tags({name: tool.text_parameter for name, tool in toolbox.tools.items()})
            )
            self.format = own
            self._instructions = own.instructions(functions) if toolbox.describe else ""

    def prompt(self, messages: Sequence[Message], *, first: bool) -> list[Message]:
        """Return a role's messages for a prompt.

        In user messages the tags of call formats become ordinary characters, so that a text cannot
        imitate a call or a result.

        Args:
            messages: Messages of the role.
            first: True if a conversation begins with them; it then begins with the tools.
        """
        shown = [
            {**message, "content": _defused(message["content"])}
            if message["role"] == "user"
            else message
            for message in messages
        ]
        if not first or not self._instructions:
            return shown
        if shown and shown[0]["role"] == "system":
            text = f"{shown[0]['content']}\n\n{self._instructions}"
            return [{**shown[0], "content": text}, *shown[1:]]
        return [{"role": "system", "content": self._instructions}, *shown]

    def calls(self, text: str) -> list[ParsedCall]:
        """Return the calls in the text of a completion; calls in its thinking do not count."""
        try:
            return self.format.calls(without_thinking(text))
        except InvalidAction:  # the thinking did not end
            return []

    def results(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Return the messages that show the results of a completion's calls."""
        return tool_messages(calls, native=self.native)


def _defused(content: Any) -> Any:
    return defused(content) if isinstance(content, str) else content


def _native_format(
    renderer: ChatRenderer, functions: Sequence[Mapping[str, Any]]
) -> CallFormat | None:
    """Return the format of calls that a chat template writes; None if no known format fits.

    Args:
        renderer: Renderer with the tools.
        functions: Descriptions of the tools.
    """
    template = renderer.template
    if not template.knows_tools:
        return None
    name = functions[0]["function"]["name"]
    call = {"type": "function", "function": {"name": name, "arguments": {"selfplay": "probe"}}}
    result = {"role": "tool", "content": _RESULT}
    try:
        said = template.render(
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                result,
            ],
            generate=True,
        )
        following = template.continuation([result], None)
    except ConfigError:
        return None
    if name not in template.generation_prompt or not following or _RESULT not in following.text:
        return None
    before, _, call_text = said.partition(_RESULT)[0].rpartition('"name"')
    if before.rstrip().rstrip("{").rstrip().endswith("<tool_call>") and '"arguments"' in call_text:
        return Hermes()
    return Llama() if '"parameters"' in call_text and '"probe"' in call_text else None
