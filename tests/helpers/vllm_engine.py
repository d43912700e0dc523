"""Models, updates and requests for the tests of vLLM's engine, and the error of its results."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.models.tiny import build_model
from selfplay.types import Completion, Request
from tests.helpers.engine_requests import END, ask, teacher

VOCABULARY = 330
DIFFERENCE = 1e-3
"""Mean absolute difference in nats that is allowed right after an update, in float32."""


def make(seed: int = 0, **sizes: int) -> PreTrainedModel:
    """Return a model whose distributions are sharp, so that its samples are not only noise."""
    wanted = {"hidden": 64, "layers": 2, "heads": 2, "intermediate": 96, "positions": 256, **sizes}
    return sharpened(build_model(VOCABULARY, seed=seed, **wanted))


def resident() -> Iterator[VLLMEngine]:
    """Yield an engine that keeps running for models of one shape: `resident` is never withdrawn."""
    engine = VLLMEngine(max_rows=64, cache=0.1, options={"block_size": 32})
    engine.serve("resident", make(), [END])
    yield engine
    engine.close()


def emptied(engine: VLLMEngine) -> Iterator[VLLMEngine]:
    """Yield the engine of `resident`. After the test withdraw all policies but `resident`."""
    yield engine
    for policy in [name for name in engine._policies if name != "resident"]:
        engine.withdraw(policy)
    engine.drain_metrics()


def sharpened(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    return model.eval()


def shake(model: PreTrainedModel, seed: int, size: float = 0.02) -> None:
    """Add noise to the trainable parameters, in place of an update."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))


def asked(policy: str, count: int = 30, **settings: Any) -> list[Request]:
    return [
        Request(
            id=request.id,
            policy=policy,
            prompt_ids=request.prompt_ids,
            seed=request.seed,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
        )
        for request in ask(count, **settings)
    ]


def in_turn(policies: Sequence[str], count: int, **settings: Any) -> list[Request]:
    """Return requests with equal prompts for several policies in turn."""
    return [
        Request(
            id=n,
            policy=policies[n % len(policies)],
            prompt_ids=(3, 4, 5, 6),
            seed=n,
            **settings,
        )
        for n in range(count)
    ]


def difference(model: PreTrainedModel, requests: list[Request], found: Any) -> float:
    """Return the mean absolute difference of log-probabilities from the model's own ones."""
    apart = [
        (torch.tensor(found[r.id].logprobs) - teacher(model, r, found[r.id], r.temperature)).abs()
        for r in requests
    ]
    return float(torch.cat(apart).mean())


def finish(engine: VLLMEngine) -> list[Completion]:
    """Run 200 steps and return the completions of all requests."""
    found: list[Completion] = []
    for _ in range(200):
        found += engine.step()
    return found
