"""The fact extractor, which writes the facts of a turn of a dialogue (Memory-R1, 2508.19828)."""

import json
from typing import Any, Literal, get_args

from roles.answer_text import check_json
from roles.prompts import load
from selfplay.errors import check_choice
from selfplay.role import Role
from selfplay.types import Action, InvalidAction

Form = Literal["json", "lines"]
NOTHING = "none"
"""Whole text of an extractor that finds no fact, with `form: lines`."""


class FactExtractor(Role):
    """Role that parses a text that is only JSON, or one line per fact; the arena checks the
    facts."""

    def __init__(self, *, style: str = "full", form: Form = "json", **settings: Any) -> None:
        """Args:
        style: Name of a prompt style of the role, or the path of a template.
        form: json: {"facts": ["...", ...]}. lines: a fact per line, or the one word none.
        settings: Settings of `Role`.
        """
        super().__init__(template=load("fact_extractor", style), **settings)
        check_choice("form", form, get_args(Form))
        self.form = form

    def parse(self, text: str) -> Action:
        """Return the facts as JSON. Raises `InvalidAction`: with `form: json` not_json, with
        `form: lines` no_facts for an empty text."""
        text = text.strip()
        if self.form == "lines":
            if not text:
                raise InvalidAction("no_facts")
            lines = [] if text.lower() == NOTHING else text.splitlines()
            return json.dumps({"facts": [line.strip() for line in lines if line.strip()]})
        return check_json(text)
