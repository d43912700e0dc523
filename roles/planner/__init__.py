"""The planner, which answers a question itself or calls workers with questions of its own."""

import json
import re
from typing import Any

from roles.prompts import load
from selfplay.role import Role
from selfplay.types import Action, InvalidAction

TAG = re.compile(r"</?(?:worker|answer)>")


class Planner(Role):
    """Role that parses one `<answer>...</answer>`, or one `<worker>...</worker>` for each call.

    Text outside the tags is the planner's reasoning, which no other agent sees.
    """

    def __init__(self, *, style: str = "full", **settings: Any) -> None:
        """`style` is the name of a prompt style of the role, or the path of a template."""
        super().__init__(template=load("planner", style), **settings)

    def parse(self, text: str) -> Action:
        """Return {"answer": text} or {"calls": [texts]} as JSON.

        Raises `InvalidAction`: no_answer without a tag or with an empty answer, malformed_tags,
        several_answers for an answer with another answer or with a call.
        """
        found: dict[str, list[str]] = {"worker": [], "answer": []}
        tags = list(TAG.finditer(text))
        if not tags:
            raise InvalidAction("no_answer")
        for opening, closing in zip(tags[::2], [*tags[1::2], None], strict=False):
            name = opening[0].strip("</>")
            if closing is None or opening[0] != f"<{name}>" or closing[0] != f"</{name}>":
                raise InvalidAction("malformed_tags")
            found[name].append(text[opening.end() : closing.start()].strip())
        if found["answer"] and (found["worker"] or len(found["answer"]) > 1):
            raise InvalidAction("several_answers")
        if found["worker"]:
            return json.dumps({"calls": found["worker"]})
        if not found["answer"][0]:
            raise InvalidAction("no_answer")
        return json.dumps({"answer": found["answer"][0]})
