"""The memory manager, which updates the memory bank for a fact (Memory-R1, 2508.19828)."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction


class MemoryManager(Role):
    """Parses a text that is only JSON; the arena checks the operation."""

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` is the name of a prompt style of the role, or the path of a template."""
        super().__init__(template=load("memory_manager", style), **settings)

    def parse(self, text: str) -> Action:
        """Return the JSON text; raises `InvalidAction` "not_json"."""
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidAction("not_json") from None
        return text.strip()
