"""Stop strings: texts at which a completion ends.

The token ids of a completion stay as sampled, up to the token that completes the stop string. Only
the text is cut.
"""

from collections.abc import Callable, Sequence

from selfplay.errors import ConfigError
from selfplay.types import Request

CONTEXT = 16
"""Number of characters that are decoded again before the longest stop string: the first token of a
decoded part can lose a space or have half of a character."""


def cut(text: str, stop: Sequence[str], *, keep: bool = False) -> str:
    """Return the text up to the first stop string; `keep` includes that string.

    If two stop strings begin at the same place, the first of `stop` counts.
    """
    found = [(text.find(each), number) for number, each in enumerate(stop) if each in text]
    if not found:
        return text
    place, number = min(found)
    return text[: place + len(stop[number])] if keep else text[:place]


class StopMatcher:
    """Finds the stop strings of one request while its tokens are sampled.

    For every new token only the last tokens are decoded again. An engine makes one for each request
    with stop strings, and calls `ends` with every sampled token.
    """

    def __init__(self, request: Request) -> None:
        """Raises ConfigError if the request does not say how its tokens are decoded."""
        if request.decode is None:
            raise ConfigError(
                f"policy {request.policy!r}: a request with stop strings needs `decode`, the "
                "function that turns its tokens into text"
            )
        self._decode: Callable[[Sequence[int]], str] = request.decode
        self.stop = request.stop
        self.found = ""
        """The stop string that ended the completion; empty if there is none yet."""
        self._window = max(map(len, request.stop)) + CONTEXT
        self._ids: list[int] = []
        self._start = 0

    def ends(self, token: int) -> bool:
        """Add a sampled token; return True if the text now contains a stop string."""
        self._ids.append(token)
        tail = self._decode(self._ids[self._start :])
        if any(each in tail for each in self.stop):
            # The beginning of a part can decode differently, so the whole text decides.
            whole = self._decode(self._ids)
            self.found = next((each for each in self.stop if each in whole), "")
        elif len(tail) > 2 * self._window:
            later = (self._start + len(self._ids)) // 2
            if len(self._decode(self._ids[later:])) >= self._window:
                self._start = later
        return bool(self.found)
