"""Hints of errors."""

from selfplay.errors import nearest


def test_a_key_that_is_a_number_has_a_hint_too() -> None:
    assert nearest(7, ["seed", "steps"]) == "choose from: seed, steps"
    assert nearest(10, ["100", "200"]) == "did you mean '100'?"
