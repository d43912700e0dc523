"""The questioner, which writes a question and, if it is not given, the answer."""

import json
from typing import Any

from roles.prompts import load
from selfplay.role import TaggedRole, split_at_tags
from selfplay.types import Action, InvalidAction


class Questioner(TaggedRole):
    """Role that parses `<question>...</question>` and, with `answers`, `<answer>...</answer>`."""

    def __init__(
        self,
        *,
        game: str = "passage_questioner",
        style: str = "full",
        answers: bool = True,
        opening: str = "<question>",
        closing: str = "</question>",
        **settings: Any,
    ) -> None:
        """Args:
        game: Name of the prompt: `passage_questioner` shows a passage, `answer_questioner` shows an
            answer.
        style: Name of a prompt style of the game, or the path of a template.
        answers: False if the answer is given, so that the role writes the question alone.
        opening, closing: Tags of the question.
        settings: Settings of `Role`.
        """
        super().__init__(template=load(game, style), opening=opening, closing=closing, **settings)
        self.answers = answers

    def parse(self, text: str) -> Action:
        """Return {"question": ..., "answer": ...} as JSON, the answer only with `answers`.

        Raises `InvalidAction` if the tags of a part are not exactly one pair, and for an empty
        part.
        """
        question, rest = self.split(text)
        if not question:
            raise InvalidAction("empty")
        if not self.answers:
            return json.dumps({"question": question})
        answer, _ = split_at_tags(rest, "<answer>", "</answer>")
        if not answer:
            raise InvalidAction("empty")
        return json.dumps({"question": question, "answer": answer})
