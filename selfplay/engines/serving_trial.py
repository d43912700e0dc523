"""A trial, before an engine serves a model, that shows if rows can share one cache and one pass."""

from collections.abc import Sequence
from itertools import product

import torch
from transformers import PreTrainedModel

from selfplay.engines.policy_batch import PolicyBatch
from selfplay.errors import DivergedError, one_line
from selfplay.models.mixed_adapters import adapter_layers, twin
from selfplay.models.tree_attention import CLEARLY_NEARER, ROUNDING, evaluating, exact
from selfplay.types import Completion, Request

PROMPTS = ((1,), (2, 1, 3, 2, 1, 0, 3, 1), (2, 1, 3, 0))
"""Prompts of the trial, cut to the model's limit."""
SIBLINGS = 4
"""Number of requests for each prompt; their common row splits where their samples differ."""
MIXED_SIBLINGS = 2
"""Number of requests for each prompt and each of two adapters."""
TOKENS = 3
"""Number of tokens that are sampled for each request."""
MESSAGE = (3, 1)
"""Tokens of the next turn, after a first prompt and its completion."""


@torch.inference_mode()
def serving_problem(model: PreTrainedModel) -> str:
    """Return the reason why the engine's log-probabilities are wrong; empty if they are right.

    Prompts of different lengths, rows that split and second turns that continue the keys and values
    of the first are compared with the model alone. The difference must be rounding, or much smaller
    than the change that another first token makes. A model in 16 bits, and a large one on a CPU, is
    tested with its first layers in float32 (`tree_attention.exact`). Raises DivergedError for
    weights that give probabilities that are not finite.
    """
    return _problem([exact(model)], siblings=SIBLINGS, turns=2)


@torch.inference_mode()
def mixing_problem(model: PreTrainedModel) -> str:
    """Return the reason why rows of several adapters like the model's cannot share a pass; empty if
    they can.

    The test is the first turn of `serving_problem`, with rows of two random adapters in each pass.
    """
    if not adapter_layers(model):
        return ""
    whole = exact(model)
    twins = [twin(whole, seed=seed) for seed in range(2)]
    return _problem(twins, siblings=MIXED_SIBLINGS, turns=1)


def _problem(models: Sequence[PreTrainedModel], *, siblings: int, turns: int) -> str:
    """Return the reason why models that share a batch are not served right; empty if they are."""
    batch = PolicyBatch(models[0], [], max_rows=16, prefill_tokens=64, stride=1, prefix_tokens=256)
    for number, model in enumerate(models):
        batch.join(str(number), model)
    limit = batch.policies["0"].limit
    if limit is not None and limit < 1 + TOKENS:
        return f"it has room for {limit} tokens only"
    room = None if limit is None else limit - TOKENS
    vocabulary = int(models[0].config.get_text_config().vocab_size)
    prompts = {tuple(token % vocabulary for token in ids)[:room] for ids in PROMPTS}
    apart = change = scale = 0.0
    try:
        for _ in range(turns):
            following = set()
            for policy, prompt, done in _answered(batch, sorted(prompts), siblings):
                whole = models[int(policy)]
                said, engine = done.completion_ids, torch.tensor(done.logprobs).double()
                alone = _nats(whole, prompt, said)
                other = _nats(whole, (4 % vocabulary, *prompt[1:]), said)
                apart = max(apart, float((engine - alone).abs().max()))
                change = max(change, float((other - alone).abs().max()))
                scale = max(scale, float(alone.abs().max()))
                message = tuple(token % vocabulary for token in MESSAGE)
                following.add((*prompt, *said, *message)[:room])
            prompts = following
    except DivergedError:  # its weights are not finite: no engine can serve them
        raise
    except Exception as error:  # a model's own code may fail in any way with our cache
        return f"its forward pass does not take rows of different lengths ({one_line(error)})"
    if apart <= max(ROUNDING * torch.finfo(models[0].dtype).eps * scale, change / CLEARLY_NEARER):
        return ""
    return f"when several rows share one cache, its log-probabilities change by {apart:.2g} nats"


def _answered(
    batch: PolicyBatch, prompts: Sequence[tuple[int, ...]], siblings: int
) -> list[tuple[str, tuple[int, ...], Completion]]:
    """Return the completions of several requests per prompt and policy, each with its policy and
    prompt."""
    asked = [
        Request(id=number, policy=policy, prompt_ids=prompt, seed=number, max_tokens=TOKENS)
        for number, (policy, prompt, _) in enumerate(
            product(batch.policies, prompts, range(siblings))
        )
    ]
    for request in asked:
        batch.add(request)
    found = []
    while batch.busy:
        found += [(asked[done.id].policy, asked[done.id].prompt_ids, done) for done in batch.step()]
    return found


def _nats(model: PreTrainedModel, prompt: Sequence[int], said: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities [C] of a completion by the model without a cache."""
    with evaluating(model):
        ids = torch.tensor([[*prompt, *said]], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        chosen = torch.tensor([list(said)], device=logits.device).T
        return logits.double().log_softmax(-1).gather(1, chosen)[:, 0].cpu()
