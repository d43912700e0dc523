"""The memory manager, which updates the memory bank for a fact (Memory-R1, 2508.19828)."""

import json
import re
from typing import Any, Literal, get_args

from roles.answer_text import check_json
from roles.prompts import load
from selfplay.errors import check_choice
from selfplay.role import Role
from selfplay.types import Action, InvalidAction

Form = Literal["json", "words"]
WORDS = re.compile(r"(?:(ADD|NOOP)|(UPDATE|DELETE) ([0-9.]{1,20}))")


class MemoryManager(Role):
    """Role that parses a text that is only JSON, or one operation in words; the arena checks the
    operation."""

    def __init__(self, *, style: str = "full", form: Form | None = None, **settings: Any) -> None:
        """Args:
        style: Name of a prompt style of the role, or the path of a template.
        form: json, or words: ADD, NOOP, UPDATE 3 or DELETE 3, where 3 is the id of an entry. None:
            the form that the style asks for, words for `sentence` and json for all others.
        settings: Settings of `Role`.
        """
        super().__init__(template=load("memory_manager", style), **settings)
        self.form = form or ("words" if style == "sentence" else "json")
        check_choice("form", self.form, get_args(Form))

    def parse(self, text: str) -> Action:
        """Return the operation as JSON. Raises `InvalidAction`: with `form: json` not_json, with
        `form: words` no_operation for any other text."""
        text = text.strip()
        if self.form == "words":
            if not (said := WORDS.fullmatch(text)):
                raise InvalidAction("no_operation")
            event = said[1] or said[2]
            return json.dumps({"event": event, "id": said[3]} if said[3] else {"event": event})
        return check_json(text)
