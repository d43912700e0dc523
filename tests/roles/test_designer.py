"""Tests of the designer's answer: one fence of JSON, or the whole text."""

import pytest

from roles.designer import Designer
from selfplay.types import InvalidAction


def test_the_design_is_in_a_fence_or_is_the_whole_text() -> None:
    role = Designer()
    assert role.parse('{"rounds": 1}\n') == '{"rounds": 1}'
    assert role.parse('I think so.\n```json\n{"rounds": 1}\n```\n') == '{"rounds": 1}'
    assert role.parse("anything") == "anything"  # the arena checks the design


@pytest.mark.parametrize(
    ("text", "reason"),
    [(" ", "no_design"), ("```json\n{}\n```\n```json\n{}\n```", "several_designs")],
)
def test_texts_without_exactly_one_design_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidAction, match=reason):
        Designer().parse(text)
