"""Words of one agent in the prompt of another: they cannot imitate the lines of the prompt."""

from selfplay.types import well_formed


def in_one_line(text: str) -> str:
    """Return a text in one line, well-formed, with one space between its words."""
    return " ".join(well_formed(text).split())


def quoted(text: str) -> str:
    """Return a text whose lines after the first begin with "> "; it may be a text in one line."""
    return "\n> ".join(text.splitlines())
