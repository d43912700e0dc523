"""Stop strings inside vLLM, which has no tokenizer here.

vLLM ends a request at a stop string that the detokenizer of the request finds.
"""

from collections.abc import Sequence

from selfplay.engines.stop_strings import StopMatcher


class StoppingDetokenizer:
    """Takes the place of vLLM's `IncrementalDetokenizer` for one request with stop strings."""

    def __init__(self, matcher: StopMatcher) -> None:
        self.token_ids: list[int] = []
        self._matcher = matcher

    @property
    def output_token_ids(self) -> list[int]:
        """Sampled tokens so far."""
        return self.token_ids

    def num_output_tokens(self) -> int:
        """Return the number of sampled tokens."""
        return len(self.token_ids)

    def update(self, new_token_ids: Sequence[int], stop_terminated: bool) -> str | None:
        """Add sampled tokens; return the stop string that they complete, if any."""
        for token in new_token_ids:
            self.token_ids.append(token)
            if not stop_terminated and self._matcher.ends(token):
                return self._matcher.found
        return None

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """Return no text: the rollout decodes the tokens."""
        return ""
