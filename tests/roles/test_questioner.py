"""Tests of the prompts of the questioner, and of reading its question and answer."""

import json
from typing import Any

import pytest

from arenas.questions.corpus_questions import proposer_view, reader_view
from roles.debater import Debater
from roles.questioner import Questioner
from selfplay.types import InvalidAction


def shown(role: Any, observation: Any) -> str:
    (message,) = role.prompt(observation)
    return str(message["content"])


@pytest.mark.parametrize("style", ["full", "terse"])
def test_a_questioner_is_shown_its_passage_or_its_answer(style: str) -> None:
    seen = proposer_view("PASSAGE", "")
    assert "PASSAGE" in shown(Questioner(style=style), seen)
    seen = proposer_view("", "ANSWER")
    assert "ANSWER" in shown(Questioner(game="answer_questioner", style=style), seen)


@pytest.mark.parametrize("style", ["full", "terse"])
def test_a_reader_is_shown_all_documents_and_the_question(style: str) -> None:
    prompt = shown(Debater(game="reader", style=style), reader_view("WHO", ["ONE", "TWO"]))
    assert all(word in prompt for word in ("ONE", "TWO", "WHO"))


def test_a_question_with_its_answer_is_read() -> None:
    said = "Hm. <question> who? </question> so <answer> me </answer>"
    assert json.loads(Questioner().parse(said)) == {"question": "who?", "answer": "me"}
    assert json.loads(Questioner(answers=False).parse(said)) == {"question": "who?"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("who?", "no_action"),
        ("<question>a</question><question>b</question>", "several_actions"),
        ("<question>a", "unclosed_action"),
        ("<question> </question><answer>a</answer>", "empty"),
        ("<question>a</question>", "no_action"),
        ("<question>a</question><answer></answer>", "empty"),
        ("<question>a</question><answer>b</answer><answer>c</answer>", "several_actions"),
        ("<question>a<answer>b</answer></question>", "no_action"),
    ],
)
def test_other_completions_are_refused_with_their_reason(said: str, reason: str) -> None:
    with pytest.raises(InvalidAction, match=reason):
        Questioner().parse(said)
