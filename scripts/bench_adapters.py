"""Times adapters that share passes over one base, compared with one pass for each adapter.

Each adapter answers the same number of requests, each with a prompt of its own. Both engines sample
the same tokens with the same tensors. `--model` adds a larger base.

Usage: python scripts/bench_adapters.py [--adapters 4] [--requests 8] [--model FOLDER]
           [--model-requests 4] [--rounds 5] [--json FILE]
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from unittest import mock

import torch
from bench_timing import Line, arguments, compared, interleaved, show
from transformers import AutoModelForCausalLM, PreTrainedModel

from selfplay.engines.transformers import TransformersEngine
from selfplay.models.lora import adapted
from selfplay.models.mixed_adapters import adapter_layers
from selfplay.models.policy_settings import Lora
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.types import Completion, Request

PROMPT, NEW, RANK = 32, 32, 16
"""Tokens of a prompt and of a completion; rank of the adapters."""
FEWER = 8
"""Tokens of a completion with `--model`."""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8, help="requests of each adapter")
    parser.add_argument("--model", type=Path, help="folder of another base, such as one of 135 M")
    parser.add_argument("--model-requests", type=int, default=4, help="requests with --model")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    small = build_model(len(build_tokenizer([])), seed=0, intermediate=352).eval()
    lines = [measured(small, NEW, options.adapters, options.requests, options.rounds)]
    if options.model is None:
        print("a larger model: left out; --model FOLDER measures it", file=sys.stderr)
    else:
        large = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
        rounds = max(1, options.rounds // 2)
        lines.append(measured(large, FEWER, options.adapters, options.model_requests, rounds))
    show(lines, options.json)


def measured(base: PreTrainedModel, new: int, adapters: int, requests: int, rounds: int) -> Line:
    """Return the seconds of both ways to sample `new` tokens for each request of all adapters."""
    base.requires_grad_(False)
    models = {f"adapter_{seed}": trained(base, seed) for seed in range(adapters)}
    together, apart = TransformersEngine(), TransformersEngine()
    serve(together, models)
    with mock.patch.object(TransformersEngine, "_base", lambda _, policy, *rest: policy):
        serve(apart, models)
    assert len(together._distinct()) == 1 and len(apart._distinct()) == adapters
    rng = Random(0)
    asked = [
        Request(
            id=number,
            policy=policy,
            prompt_ids=tuple(rng.randrange(10, 200) for _ in range(PROMPT)),
            seed=number,
            max_tokens=new,
        )
        for number, policy in enumerate(policy for policy in models for _ in range(requests))
    ]
    answers: dict[str, dict[int, Completion]] = {}
    engines = {"together": together, "apart": apart}

    def answer(name: str) -> None:
        answers[name] = answered(engines[name], asked)

    seconds = interleaved(
        {"together": lambda: answer("together"), "apart": lambda: answer("apart")}, rounds
    )
    differing = sum(
        answers["together"][each.id].completion_ids != answers["apart"][each.id].completion_ids
        for each in asked
    )
    if differing:
        print(f"{differing} of {len(asked)} samples differ", file=sys.stderr)
    size = sum(parameter.numel() for parameter in base.parameters()) / 1e6
    what = (
        f"{adapters} adapters in one pass, {requests} x {new} tokens each, {size:.1f} M parameters"
    )
    return compared(what, seconds["together"], seconds["apart"], target=1.5)


def trained(base: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Return the base with an adapter whose B is not 0."""
    model = adapted(base, Lora(rank=RANK, alpha=2 * RANK), seed=seed, where="bench").eval()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapter_layers(model).values():
            up = layer.lora_B["default"].weight
            up.copy_(0.02 * torch.randn(up.shape, generator=source))
    return model


def serve(engine: TransformersEngine, models: Mapping[str, PreTrainedModel]) -> None:
    """Serve all models."""
    for name, model in models.items():
        engine.serve(name, model, [])


def answered(engine: TransformersEngine, asked: Sequence[Request]) -> dict[int, Completion]:
    """Answer all requests with an engine that has forgotten earlier ones."""
    engine.forget()
    for request in asked:
        engine.add(request)
    found: dict[int, Completion] = {}
    while len(found) < len(asked):
        found |= {done.id: done for done in engine.step()}
    return found


if __name__ == "__main__":
    main()
