"""Ranges of training steps as the command line writes them."""

from selfplay.errors import ConfigError


def step_range(text: str) -> tuple[int | None, int | None]:
    """Return the first and the last step of A:B, A:, :B or A; None where one is left out.

    Raises ConfigError for any other text, and for A larger than B.
    """
    first, colon, last = text.partition(":")
    for part in (first, last):
        if part and not (part.isdecimal() and len(part) < 10):
            raise ConfigError(f"--steps {text}: A:B is needed, such as 10:20, 10: or :20")
    if not text or (first and last and int(first) > int(last)):
        raise ConfigError(
            f"--steps {text}: A:B with A at most B is needed, such as 10:20, 10: or :20"
        )
    if not colon:
        last = first
    return int(first) if first else None, int(last) if last else None
