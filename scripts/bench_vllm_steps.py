"""Times the steps of vLLM: final outputs compared with those of every step, and async scheduling.

Both ways of a comparison sample the same requests of a tiny model, all of them at once. `outputs`
compares the engine, to which vLLM reports a request when it ends, with one to which it reports
every token. `scheduling` compares an engine with async scheduling with one without it; it needs a
GPU, because vLLM turns async scheduling off on a CPU.

Usage: python scripts/bench_vllm_steps.py [--compare outputs scheduling] [--rows 256]
           [--tokens 64] [--rounds 5] [--json FILE]
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from bench_timing import Line, arguments, compared, load, show

from selfplay.engines.vllm import core
from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.models.tiny import build_model
from selfplay.types import Request

VOCABULARY = 330
PROMPT = 24
"""Number of tokens of a prompt."""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--compare", nargs="+", choices=("outputs", "scheduling"))
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    what = f"{options.rows} rows of {options.tokens} tokens"
    lines: list[Line] = []
    for kind in options.compare or (("outputs", "scheduling") if on_gpu else ("outputs",)):
        if kind == "outputs":
            ours = other = engine_of(options.rows, options.tokens)
        else:  # refused on a CPU
            ours = engine_of(options.rows, options.tokens, async_scheduling=True)
            other = engine_of(options.rows, options.tokens)
        seconds: dict[str, list[float]] = {"ours": [], "other": []}
        for number in range(options.rounds + 1):
            found: dict[str, Any] = {}
            for way in ("ours", "other") if number % 2 else ("other", "ours"):
                engine = ours if way == "ours" else other
                every = way == "other" and kind == "outputs"
                with every_output(engine) if every else nullcontext():
                    spent, found[way] = sampled(engine, options.rows, options.tokens, on_gpu=on_gpu)
                if number:  # the first round warms up
                    seconds[way].append(spent)
            if kind == "outputs":
                assert found["ours"] == found["other"], "the kind of output changed a sample"
        unit = "seconds" if on_gpu else "CPU seconds"
        lines.append(compared(f"{what}, {kind}: {unit}", seconds["ours"], seconds["other"]))
        for engine in {id(each): each for each in (ours, other)}.values():
            engine.close()
    print(load())
    show(lines, options.json)


def engine_of(rows: int, tokens: int, *, async_scheduling: bool = False) -> VLLMEngine:
    """Return an engine that serves the tiny model."""
    model = build_model(VOCABULARY, seed=0).eval()
    if torch.cuda.is_available():
        model = torch.nn.Module.to(model, device="cuda")
    length = PROMPT + tokens
    engine = VLLMEngine(
        max_rows=rows,
        max_length=length,
        memory=0.2,
        cache=None if torch.cuda.is_available() else 1.0,
        async_scheduling=async_scheduling,
        options={"block_size": 32},
    )
    engine.serve("p", model, [])
    return engine


def sampled(engine: VLLMEngine, rows: int, tokens: int, *, on_gpu: bool) -> tuple[float, Any]:
    """Return the seconds (on a CPU, of processor time) and all completions."""
    clock = time.perf_counter if on_gpu else time.process_time
    for row in range(rows):
        prompt = tuple(3 + (row + place) % 300 for place in range(PROMPT))
        engine.add(Request(id=row, policy="p", prompt_ids=prompt, seed=row, max_tokens=tokens))
    found: dict[int, tuple[int, ...]] = {}
    began = clock()
    while len(found) < rows:
        found |= {done.id: done.completion_ids for done in engine.step()}
    return clock() - began, found


@contextmanager
def every_output(engine: VLLMEngine) -> Iterator[None]:
    """Let vLLM report every token of requests that begin in the context."""
    from vllm.sampling_params import RequestOutputKind

    (group,) = engine._groups.values()
    step = group.host.engine.step

    def ended() -> list[Any]:
        return [output for output in step() if output.finished]

    kind = RequestOutputKind.CUMULATIVE
    with (
        mock.patch.object(core, "final_only", lambda: kind),
        mock.patch.object(group.host.engine, "step", ended),
    ):
        yield


if __name__ == "__main__":
    main()
