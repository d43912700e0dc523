"""The searcher, which searches for documents or answers a question."""

import json
import re
from typing import Any

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction

TAG = re.compile(r"<(/?)(search|answer)>")


class Searcher(Role):
    """Role that parses one `<search>...</search>` or one `<answer>...</answer>`.

    Other text is ignored.
    """

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` is the name of a prompt style of the role, or the path of a template."""
        super().__init__(template=load("searcher", style), **settings)

    def parse(self, text: str) -> Action:
        """Return {"search": ...} or {"answer": ...} as JSON.

        Raises `InvalidAction`: no_action, several_actions, malformed_tags, or empty.
        """
        tags = list(TAG.finditer(text))
        if not tags:
            raise InvalidAction("no_action")
        if len(tags) > 2:
            raise InvalidAction("several_actions")
        if [tag[1] for tag in tags] != ["", "/"] or tags[0][2] != tags[1][2]:
            raise InvalidAction("malformed_tags")
        said = text[tags[0].end() : tags[1].start()].strip()
        if not said:
            raise InvalidAction("empty")
        return json.dumps({tags[0][2]: said})
