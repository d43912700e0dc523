"""The answer agent: picks the memories that it uses and answers (Memory-R1, 2508.19828)."""

import json
import re
from typing import Any

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction

MENTION = re.compile(r"\[([0-9.]{1,20})\]")


class AnswerAgent(Role):
    """Writes down the memories that it selects, and behind them a marked answer."""

    def __init__(
        self, *, style: str = "full", marker: str = "**Answer:**", **settings: Any
    ) -> None:
        """`style` names a prompt template of `roles/prompts`, or is the path of one; the answer is
        what follows the `marker`."""
        super().__init__(template=load("answer_agent", style), **settings)
        self.marker = marker

    def parse(self, text: str) -> Action:
        """{"answer": ..., "memories": [ids]}; raises `InvalidAction`.

        Named are the memories whose ids stand in square brackets before the marker.
        """
        if text.count(self.marker) > 1:
            raise InvalidAction("several_answers")
        before, marked, answer = text.partition(self.marker)
        if not marked or not answer.strip():
            raise InvalidAction("no_answer")
        named = list(dict.fromkeys(MENTION.findall(before)))
        return json.dumps({"answer": answer.strip(), "memories": named})
