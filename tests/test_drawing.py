"""Tests of drawings."""

from selfplay.drawing import cards


def test_a_row_without_cards_is_a_drawing_of_its_lines() -> None:
    drawn = cards([], title="No cards", lines=["the deck is empty"])
    assert [shape.text for shape in drawn.shapes] == ["the deck is empty"]
    assert drawn.width > 0 and drawn.height > 0
