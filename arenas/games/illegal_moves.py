"""Rule for illegal moves, shared by all games."""

from typing import Literal, get_args

from selfplay.errors import check_choice

Illegal = Literal["lose", "retry", "random_legal"]
"""Consequence of an illegal move: the player loses, or is asked again a few times before it loses,
or a random legal move is played instead. All illegal moves are counted."""

SHOWN = 80
"""Maximum characters of a refused move in the observation of its player."""


def check_rule(illegal: str, retries: int | None) -> None:
    """Raise ValueError for an unknown rule or a negative number of retries."""
    check_choice("illegal", illegal, get_args(Illegal))
    if retries is not None and retries < 0:
        raise ValueError(f"retries: {retries} is negative, set 0 or more")
