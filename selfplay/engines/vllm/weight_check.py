"""Checks by log-probabilities that an engine samples with the weights that it received.

An update that does not arrive raises no error by itself: the run would continue and learn from
completions of other weights.
"""

from collections.abc import Mapping, Sequence
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

CLEARLY = 4
"""Ratio of a model's change to the usual difference that tells the new model from the old one."""
LENGTH = 64
"""Number of tokens of the longest test prompt."""
PROMPTS = 8
"""Number of test prompts, each the beginning of the next."""


class WeightMismatch(Exception):
    """Raised if the engine's log-probabilities are not those of the weights."""


class WeightCheck:
    """Compares an engine's log-probabilities after fixed prompts with those of the model.

    There are two tests. First, the mean absolute difference must be within a tolerance. Second,
    if an update changed the model by much more than the usual difference, the engine must be
    nearer to the new model than to the old one. An engine that is exact to 1e-6 nats thus shows
    that an update of 1e-5 nats was lost. A lost update below the rounding error cannot be seen.
    """

    def __init__(self, tolerance: float) -> None:
        """`tolerance`: the maximum mean absolute difference in nats."""
        self.tolerance = tolerance
        self.usual = 0.0
        """Largest mean absolute difference so far, in nats."""
        self._was: Tensor | None = None

    def check(self, said: Sequence[Mapping[int, float]], model: Tensor) -> float:
        """Return the mean absolute difference in nats; raise WeightMismatch if a test fails.

        Args:
            said: The engine's log-probabilities of some next tokens, per prompt.
            model: [prompts, vocabulary] log-probabilities of the model.
        """
        rows = torch.tensor([row for row, nats in enumerate(said) for _ in nats])
        tokens = torch.tensor([token for nats in said for token in nats])
        engine = torch.tensor([value for nats in said for value in nats.values()])
        own = model[rows, tokens]
        error = float((engine - own).abs().mean())
        moved = 0.0 if self._was is None else float((own - self._was[rows, tokens]).abs().mean())
        if not error <= self.tolerance:  # also if the error is NaN
            raise WeightMismatch(
                f"its log-probabilities differ from the model's by {error:.2g} on average, and "
                f"the tolerance is {self.tolerance:g}"
            )
        if moved > CLEARLY * self.usual and error > moved / 2:
            raise WeightMismatch(
                f"the update changed the model by {moved:.2g} nats on average, and its "
                f"log-probabilities differ from the model's by {error:.2g}"
            )
        self.usual, self._was = max(self.usual, error), model
        return error


def prompts(vocabulary: int, longest: int) -> list[tuple[int, ...]]:
    """Return the test prompts: random tokens, the same in every call."""
    rng = Random(0)
    ids = tuple(rng.randrange(vocabulary) for _ in range(min(LENGTH, longest)))
    lengths = {max(1, len(ids) * part // PROMPTS) for part in range(1, PROMPTS + 1)}
    return [ids[:length] for length in sorted(lengths)]


@torch.no_grad()
def logprobs(model: PreTrainedModel, asked: Sequence[Sequence[int]]) -> Tensor:
    """Return the model's log-probabilities [prompts, vocabulary] of the next token, in nats.

    Each prompt is a beginning of the last one, so one forward pass is enough.
    """
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([list(asked[-1])], device=model.device)
        ends = torch.tensor([len(prompt) - 1 for prompt in asked], device=model.device)
        return model(input_ids=ids, use_cache=False).logits[0, ends].float().log_softmax(-1).cpu()
    finally:
        model.train(training)
