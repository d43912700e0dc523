"""The reflector: chooses the memories that an answer agent sees (RMM, 2503.08026)."""

import json
from typing import Any

from roles.answer_text import REFERENCE
from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction

NOTHING = "none"
"""Whole choice of a reflector that finds no useful memory."""


class Reflector(Role):
    """Role that parses the chosen memories, the best one first, after a marker."""

    def __init__(
        self, *, style: str = "full", marker: str = "**Memories:**", **settings: Any
    ) -> None:
        """Args:
        style: Name of a prompt style of the role, or the path of a template.
        marker: Text before the choice; empty if the whole text is the choice.
        settings: Settings of `Role`.
        """
        super().__init__(template=load("reflector", style), **settings)
        self.marker = marker

    def parse(self, text: str) -> Action:
        """Return {"memories": [ids]} as JSON.

        The choice consists of ids in square brackets, or of the one word none. Raises
        `InvalidAction`: several_choices for several markers, no_choice for anything else.
        """
        if self.marker:
            if text.count(self.marker) > 1:
                raise InvalidAction("several_choices")
            _, marked, text = text.partition(self.marker)
            if not marked:
                raise InvalidAction("no_choice")
        text = text.strip()
        named = list(dict.fromkeys(REFERENCE.findall(text)))
        rest = REFERENCE.sub("", text).replace(",", "").strip().lower()
        if rest not in ("", NOTHING) or bool(rest) == bool(named):
            raise InvalidAction("no_choice")
        return json.dumps({"memories": named})
