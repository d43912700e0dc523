"""Words of one agent in the prompt of another: they cannot imitate the lines of the prompt."""

from selfplay.types import well_formed


def in_one_line(text: str) -> str:
    """Return a text in one line, well-formed, with one space between its words."""
    return " ".join(well_formed(text).split())


def quoted(text: str) -> str:
    """Return the text with "> " at the beginning of each line after the first; a text of one line
    stays as it is."""
    return "\n> ".join(text.splitlines())
