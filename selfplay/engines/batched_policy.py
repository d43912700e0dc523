"""One policy of a batch: its waiting requests, and the results of earlier ones that are kept."""

from transformers import PreTrainedModel

from selfplay.engines import check_lengths
from selfplay.engines.greedy_answers import GreedyAnswers
from selfplay.engines.prefix_cache import PrefixCache
from selfplay.engines.request_queue import RequestQueue
from selfplay.models.position_limits import reach
from selfplay.types import Request


class BatchedPolicy:
    """A policy that `PolicyBatch` serves: its model, its queue, and the results that are kept.

    The batch has the keys and values of the requests in flight.
    """

    def __init__(
        self, name: str, model: PreTrainedModel, *, number: int, prefix_tokens: int
    ) -> None:
        """Args:
        name: Its name.
        model: Its model with the current weights.
        number: Its number in the batch, which the batch records for each of its rows.
        prefix_tokens: Maximum number of tokens whose keys and values are kept.
        """
        self.name, self.model, self.number, self.version = name, model, number, 0
        self.prefix_tokens = prefix_tokens
        self.waiting = RequestQueue()
        self.in_rows = 0
        """Number of requests that have rows."""
        self.greedy = GreedyAnswers()
        self.sleep()
        config = model.config.get_text_config()
        self.limit, self.why = getattr(config, "max_position_embeddings", None), ""
        if self.limit is not None and self.limit < 1:  # XLNet has no limit and says so by -1
            self.limit = None
        served = reach(model).served()
        if served is not None and (self.limit is None or served.tokens < self.limit):
            self.limit, self.why = served.tokens, f" (it has {served.reason})"

    @property
    def busy(self) -> bool:
        """True while a request has no completion."""
        return bool(self.waiting or self.in_rows)

    def add(self, request: Request) -> None:
        """Queue a request."""
        check_lengths(request, self.limit, self.why)
        self.waiting.add(request)

    def sleep(self) -> None:
        """Drop the results of earlier requests and free their memory."""
        self.prefixes = PrefixCache(self.prefix_tokens)
        self.forget()

    def forget(self) -> None:
        """Drop the keys, values and completions of earlier requests; keep the memory."""
        self.prefixes.clear()
        self.greedy.forget()
        self._weights = _weights(self.model)

    def changed(self) -> bool:
        """Return True if the weights are not those of the last `forget`, such as after an optimizer
        step in place."""
        return self._weights != _weights(self.model)


def _weights(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Return address and number of changes of each of the model's parameters."""
    return [
        (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in model.parameters()
    ]
