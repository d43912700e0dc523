"""A style that asks for another form of an answer reads this form."""

import json

import pytest

from roles.answer_agent import AnswerAgent
from roles.debater import Debater
from roles.memory_manager import MemoryManager
from selfplay import InvalidAction
from selfplay.errors import SettingError


def test_a_debater_reads_the_sentence_that_its_prompt_asks_for() -> None:
    answer = {"answer": "7", "argument": "The"}
    assert (
        json.loads(Debater(game="generator", style="sentence").parse("The answer is 7.")) == answer
    )
    with pytest.raises(InvalidAction):
        Debater(game="generator").parse("The answer is 7.")
    tagged = Debater(game="generator", style="sentence", opening="<a>", closing="</a>")
    assert json.loads(tagged.parse("<a>7</a>"))["answer"] == "7"
    assert json.loads(Debater().parse("<answer>7</answer>"))["answer"] == "7"


def test_a_manager_and_an_answer_agent_read_their_style() -> None:
    assert MemoryManager(style="sentence").parse("DELETE 3") == '{"event": "DELETE", "id": "3"}'
    assert MemoryManager().parse('{"event": "ADD"}') == '{"event": "ADD"}'
    assert MemoryManager(style="sentence", form="json").parse("[]") == "[]"
    said = AnswerAgent(style="sentence").parse("It is Rome")
    assert json.loads(said) == {"answer": "Rome", "memories": []}
    assert json.loads(AnswerAgent().parse("**Answer:** Rome"))["answer"] == "Rome"
    with pytest.raises(SettingError, match=r"^form is one of json"):
        MemoryManager(form="yaml")  # type: ignore[arg-type]
