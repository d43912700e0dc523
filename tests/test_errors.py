"""Hints of errors."""

from selfplay.errors import nearest, one_line, printable


def test_a_key_that_is_a_number_has_a_hint_too() -> None:
    assert nearest(7, ["seed", "steps"]) == "choose from: seed, steps"
    assert nearest(10, ["100", "200"]) == "did you mean '100'?"


def test_an_error_is_printed_without_characters_that_a_terminal_obeys() -> None:
    assert printable("a\x1b[2J\nb\u202ec") == "a?[2J b?c"
    assert one_line(ValueError("x\ny\x07")) == "ValueError: x y?"


def test_a_sentence_in_a_key_error_has_no_quotes() -> None:
    assert one_line(KeyError("game_v0: no agent 'x'")) == "KeyError: game_v0: no agent 'x'"
    assert one_line(KeyError("side")) == "KeyError: 'side'"
