"""Proof that an engine samples with the weights that it was given, by log-probabilities.

An update that does not arrive raises no error by itself: the run goes on, and learns from words
that other weights said.
"""

from collections.abc import Mapping, Sequence
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

CLEARLY = 4
"""How many times the usual difference a movement must be, to tell an old model from a new one."""
LENGTH = 64
"""Tokens of the longest prompt that is compared."""
PROMPTS = 8
"""How many there are, each the beginning of the next."""


class WeightMismatch(Exception):
    """The engine's log-probabilities are not those of the weights; the message is the reason."""


class WeightCheck:
    """Compares what an engine says of fixed prompts' next tokens with what the model itself says.

    Two tests. The mean absolute difference stays within a tolerance. And where the model moved by
    clearly more than the two usually differ, the engine is nearer to where it is than to where it
    was: an update of 1e-5 nats that is lost is found by an engine that is right to 1e-6. A lost
    update that is smaller than the rounding of the two cannot be seen, by a ratio neither.
    """

    def __init__(self, tolerance: float) -> None:
        """`tolerance`: the largest mean absolute difference, in nats."""
        self.tolerance = tolerance
        self.usual = 0.0
        """The largest difference so far."""
        self._was: Tensor | None = None

    def check(self, said: Sequence[Mapping[int, float]], model: Tensor) -> float:
        """The mean absolute difference; raises NotArrived.

        Args:
            said: Of each prompt, the engine's log-probabilities of some next tokens.
            model: [prompts, vocabulary] the model's.
        """
        rows = torch.tensor([row for row, nats in enumerate(said) for _ in nats])
        tokens = torch.tensor([token for nats in said for token in nats])
        engine = torch.tensor([value for nats in said for value in nats.values()])
        own = model[rows, tokens]
        error = float((engine - own).abs().mean())
        moved = 0.0 if self._was is None else float((own - self._was[rows, tokens]).abs().mean())
        if not error <= self.tolerance:  # nor where it is no number
            raise WeightMismatch(
                f"its log-probabilities differ from the model's by {error:.2g} on average, where "
                f"the tolerance is {self.tolerance:g}"
            )
        if moved > CLEARLY * self.usual and error > moved / 2:
            raise WeightMismatch(
                f"the model moved by {moved:.2g} nats on average, its log-probabilities are "
                f"{error:.2g} from it"
            )
        self.usual, self._was = max(self.usual, error), model
        return error


def prompts(vocabulary: int, longest: int) -> list[tuple[int, ...]]:
    """The prompts that are compared: any tokens, and always the same."""
    rng = Random(0)
    ids = tuple(rng.randrange(vocabulary) for _ in range(min(LENGTH, longest)))
    lengths = {max(1, len(ids) * part // PROMPTS) for part in range(1, PROMPTS + 1)}
    return [ids[:length] for length in sorted(lengths)]


@torch.no_grad()
def logprobs(model: PreTrainedModel, asked: Sequence[Sequence[int]]) -> Tensor:
    """[prompts, vocabulary] nats that the model gives the next token of each prompt.

    Each prompt is the beginning of the last one, so that one forward pass has them all.
    """
    training = model.training
    model.eval()
    try:
        ids = torch.tensor([list(asked[-1])], device=model.device)
        places = torch.tensor([len(prompt) - 1 for prompt in asked], device=model.device)
        return model(input_ids=ids, use_cache=False).logits[0, places].float().log_softmax(-1).cpu()
    finally:
        model.train(training)
