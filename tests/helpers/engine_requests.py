"""Requests to the embedded engine, and the answers that the model itself gives to them."""

from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import torch
from transformers import PreTrainedModel

from selfplay.engines import Engine
from selfplay.engines.transformers import TransformersEngine
from selfplay.types import Completion, Request

END = 2


def serving(
    models: Mapping[str, PreTrainedModel], end_ids: Mapping[str, Sequence[int]], **settings: int
) -> TransformersEngine:
    made = TransformersEngine(**settings)
    for name, model in models.items():
        made.serve(name, model, end_ids[name])
    return made


def engine(model: PreTrainedModel, **settings: int) -> TransformersEngine:
    return serving({"p": model}, {"p": [END]}, **settings)


def ask(
    count: int, *, max_tokens: int = 12, temperature: float = 1.0, seed: int = 0
) -> list[Request]:
    rng = Random(seed)
    prompts = [tuple(rng.randrange(3, 200) for _ in range(rng.randint(1, 20))) for _ in range(5)]
    return [
        Request(
            id=number,
            policy="p",
            prompt_ids=rng.choice(prompts),
            seed=seed * 1000 + number,
            max_tokens=rng.randint(1, max_tokens),
            temperature=temperature,
        )
        for number in range(count)
    ]


def answer(engine: Engine, requests: Sequence[Request]) -> dict[int, Completion]:
    for request in requests:
        engine.add(request)
    found: dict[int, Completion] = {}
    for _ in range(1000):
        found |= {completion.id: completion for completion in engine.step()}
        if len(found) == len(requests):
            return found
    raise AssertionError("the engine does not finish")


@torch.no_grad()
def teacher(
    model: PreTrainedModel, request: Request, done: Completion, temperature: float
) -> torch.Tensor:
    ids = torch.tensor([[*request.prompt_ids, *done.completion_ids]])
    logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
    chosen = torch.tensor(done.completion_ids)[:, None]
    return (logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0]


@torch.no_grad()
def plain(
    model: PreTrainedModel, request: Request, ends: Sequence[int] = (END,)
) -> tuple[tuple[int, ...], list[float]]:
    """Return tokens and log-probabilities of one request, without cache, batch or engine."""
    uniforms = np.random.Generator(np.random.Philox(request.seed)).random(request.max_tokens)
    said: list[int] = []
    nats = []
    for uniform in uniforms:
        ids = torch.tensor([[*request.prompt_ids, *said]])
        logits = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        if request.temperature == 0:
            said.append(int(logits.argmax()))
            nats.append(0.0)
        else:
            logprobs = (logits / request.temperature).log_softmax(-1)
            ladder = logprobs.exp().double().cumsum(-1)
            said.append(int(torch.searchsorted(ladder, uniform * ladder[-1], right=True)))
            nats.append(float(logprobs[said[-1]]))
        if said[-1] in ends:
            break
    return tuple(said), nats


def distinct(sequences: Sequence[tuple[int, ...]]) -> int:
    """Return the number of distinct prefixes: the tokens to compute if none is computed again."""
    return len({ids[:end] for ids in sequences for end in range(1, len(ids) + 1)})
