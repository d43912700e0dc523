"""The rule for illegal moves, the same in all games."""

from typing import Literal, get_args

Illegal = Literal["lose", "retry", "random_legal"]
"""What follows a text that is no legal move: the game is lost, the player is asked again a few
times before that, or a legal move is drawn in its place. All of them are counted."""

SHOWN = 80
"""Characters of a refused move that its player sees again."""


def check_rule(illegal: str, retries: int | None) -> None:
    """Raise ValueError for what is no such rule."""
    if illegal not in get_args(Illegal):
        raise ValueError(f"illegal is one of {', '.join(get_args(Illegal))}, not {illegal!r}")
    if retries is not None and retries < 0:
        raise ValueError(f"retries: {retries} is negative")
