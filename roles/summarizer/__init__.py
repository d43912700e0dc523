"""The summarizer: writes memories of a session by topic (RMM's prospective reflection,
2503.08026)."""

import json
import re
from typing import Any, Literal, get_args

from roles.answer_text import check_json
from roles.prompts import load
from selfplay.errors import check_choice
from selfplay.role import Role
from selfplay.types import Action, InvalidAction

Form = Literal["json", "lines"]
NOTHING = ("NO_TRAIT", "none")
"""Whole texts of a summarizer that finds nothing to remember; the paper uses the first one."""
PLACES = re.compile(r"(?:\][0-9]{1,6}\[)+")
"""Pattern of the numbers of turns at the end of a line, for the line written backwards: the match
then needs no backtracking."""


class Summarizer(Role):
    """Role that parses a text that is only JSON, or a line for each memory; the arena checks the
    memories."""

    def __init__(self, *, style: str = "full", form: Form = "json", **settings: Any) -> None:
        """Args:
        style: Name of a prompt style of the role, or the path of a template.
        form: json: the paper's {"extracted_memories": [{"summary": "...", "reference": [0, 2]}]}.
            lines: a memory per line and the numbers of its turns: "Ann has a cat. [0][2]".
        settings: Settings of `Role`.
        """
        super().__init__(template=load("summarizer", style), **settings)
        check_choice("form", form, get_args(Form))
        self.form = form

    def parse(self, text: str) -> Action:
        """Return the memories as JSON. Raises `InvalidAction`: with `form: json` not_json, with
        `form: lines` no_memories for an empty text and for a line without numbers of turns."""
        text = text.strip()
        if text in NOTHING:
            return json.dumps({"extracted_memories": []})
        if self.form == "json":
            return check_json(text)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not lines:
            raise InvalidAction("no_memories")
        return json.dumps({"extracted_memories": [_memory(line) for line in lines]})


def _memory(line: str) -> dict[str, Any]:
    """Return the memory of a line; raises `InvalidAction` without numbers of turns at its end."""
    if not (found := PLACES.match(line[::-1])):
        raise InvalidAction("no_memories")
    end = len(line) - found.end()
    places = [int(number) for number in re.findall(r"[0-9]+", line[end:])]
    return {"summary": line[:end].rstrip(), "reference": places}
