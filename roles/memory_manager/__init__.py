"""The memory manager: decides what becomes of a fact (Memory-R1, 2508.19828)."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction


class MemoryManager(Role):
    """Answers with JSON and nothing else; what it may say of the bank is for the arena to judge."""

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` names a prompt template of `roles/prompts`, or is the path of one."""
        super().__init__(template=load("memory_manager", style), **settings)

    def parse(self, text: str) -> Action:
        """The JSON text; raises `InvalidAction` "not_json"."""
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidAction("not_json") from None
        return text.strip()
