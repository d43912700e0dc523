"""Times generation that computes each distinct token once, compared with a row for each request.

Kuhn poker, tic-tac-toe, the quickstart and Leduc poker are played once by their tiny policies; the
recorded requests are then answered several times. The last case is conversations of four turns.
Both ways sample the same tokens. `--model` adds a larger model, which plays fewer games. A case
such as `smollm2/tic_tac_toe` plays a step of this experiment with its warm-started model. With
`--compared-with padding`, the other way are prefill passes of as many parts as fit, of any lengths.

Usage: python scripts/bench_generation.py [--cases kuhn ...] [--compared-with requests|padding]
           [--model FOLDER] [--rounds 5] [--json FILE] [key=value ...]
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import torch
from bench_timing import Line, arguments, compared, interleaved, show
from transformers import AutoModelForCausalLM, PreTrainedModel

from selfplay.config import compose
from selfplay.engines import policy_batch
from selfplay.engines.decoding import DecodingRows
from selfplay.engines.greedy_answers import GreedyAnswers
from selfplay.engines.prefix_cache import PrefixCache
from selfplay.engines.prompt_parts import PromptPart
from selfplay.engines.transformers import TransformersEngine
from selfplay.experiment.experiment import Experiment
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.types import Completion, Request

PLAYED = {
    "kuhn": "tiny/kuhn",
    "tic-tac-toe": "tiny/tic_tac_toe",
    "quickstart": "tiny/quickstart",
    "leduc": "tiny/leduc",
}
CASES = (*PLAYED, "conversation")
SMOLLM2 = ("smollm2/absolute_zero", "smollm2/tic_tac_toe")
"""Experiments of SmolLM2-135M with their warm starts, which take minutes if they are not cached."""
TURNS, NEW, MESSAGE, SYSTEM = 4, 32, 32, 96
"""Turns of a conversation; tokens of an answer, a message and the common rules."""
LARGER = {
    "kuhn": ["sampler.group_size=16"],
    "tic-tac-toe": ["curriculum.batch=1", "sampler.group_size=8"],
    "leduc": ["roles.player.style=full", "sampler.group_size=2"],
}
"""Games of `--model`, with settings that make a step smaller."""


class SeparateRows(DecodingRows):
    """One row for each request, as if no two histories were equal."""

    def histories(self) -> torch.Tensor:
        """Return numbers that all differ, ascending by row."""
        return super().histories() * len(self) + torch.arange(len(self))


def undivided(prompts: Sequence[tuple[int, ...]], known: Sequence[int]) -> list[list[PromptPart]]:
    """Return every prompt as one part."""
    return [[PromptPart(prompt=number, start=start) for number, start in enumerate(known)]]


def few_passes(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Return passes that take as many parts as fit, the shortest first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    found: list[list[int]] = [[]]
    for index in order:
        if found[-1] and (len(found[-1]) + 1) * lengths[index] > limit:
            found.append([])
        found[-1].append(index)
    return found


def padding(engine: TransformersEngine) -> AbstractContextManager[object]:
    """Let the engine pad short parts to long ones."""
    return mock.patch.object(policy_batch, "passes", few_passes)


@contextmanager
def request_by_request(engine: TransformersEngine) -> Iterator[None]:
    """Let the engine share nothing but the prefill of equal prompts of one batch."""
    (batch,) = engine._batches.values()
    (policy,) = batch.policies.values()
    kept, shared = policy.prefixes, batch.rows
    policy.prefixes, batch.rows = PrefixCache(0), SeparateRows(sorted(shared.end_ids))
    try:
        with (
            mock.patch.object(policy_batch, "prompt_parts", undivided),
            mock.patch.object(GreedyAnswers, "take", lambda *_: False),
        ):
            yield
    finally:
        policy.prefixes, batch.rows = kept, shared


OTHER_WAYS: dict[str, Callable[[TransformersEngine], AbstractContextManager[object]]] = {
    "requests": request_by_request,
    "padding": padding,
}
"""The ways that ours is compared with."""


@dataclass
class GenerationCase:
    """Requests in the order in which a rollout made them, a list before each engine step."""

    name: str
    model: PreTrainedModel
    end_ids: Sequence[int]
    waves: list[list[Request]]

    def answer(self, engine: TransformersEngine) -> dict[int, Completion]:
        """Answer all requests with an engine that has forgotten earlier ones."""
        engine.forget()
        found: dict[int, Completion] = {}
        for wave in self.waves:
            for request in wave:
                engine.add(request)
            found |= {done.id: done for done in engine.step()}
        while len(found) < sum(map(len, self.waves)):
            found |= {done.id: done for done in engine.step()}
        return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--cases", nargs="+", choices=(*CASES, *SMOLLM2), default=CASES)
    parser.add_argument(
        "--compared-with", choices=OTHER_WAYS, default="requests", help="the other way"
    )
    parser.add_argument("--model", type=Path, help="folder of another model, such as one of 135 M")
    parser.add_argument("--rounds", type=int, default=5)
    options, overrides = parser.parse_known_args()
    if options.model is None:
        print("a larger model: left out; --model FOLDER measures it", file=sys.stderr)
    lines = []
    for name in options.cases:
        case = conversation() if name == "conversation" else recorded(name, overrides)
        lines += measured(case, options.rounds, options.compared_with)
        if options.model is not None:
            if larger := of_model(name, options.model):
                lines += measured(larger, max(1, options.rounds // 2), options.compared_with)
            else:
                print(f"{name}: an untrained model makes no valid step of it", file=sys.stderr)
    show(lines, options.json)


def of_model(name: str, folder: Path) -> GenerationCase | None:
    """Return the case for another model; None where it cannot play."""
    if name == "conversation":
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return conversation(model, tasks=1)
    if name not in LARGER:
        return None
    return recorded(name, [*LARGER[name], "policy=huggingface", f"policy.model={folder}"])


def recorded(name: str, overrides: Sequence[str]) -> GenerationCase:
    """Play one step of an experiment with its warm-started policy and keep the requests."""
    home = PLAYED.get(name, name)
    experiment = Experiment(compose.load([f"+experiment={home}", *overrides])).load()
    engine: Any = experiment.engine
    waves: list[list[Request]] = [[]]
    add, step = engine.add, engine.step

    def adding(request: Request) -> None:
        number = sum(map(len, waves))
        waves[-1].append(replace(request, id=number, policy="base"))
        add(request)

    def stepping() -> list[Completion]:
        waves.append([])
        found: list[Completion] = step()
        return found

    with mock.patch.multiple(engine, add=adding, step=stepping):
        experiment.sampler.sample(
            experiment.curriculum, experiment.rollout_fn, step=1, seed=experiment.seed
        )
    (policy,) = experiment.policies.values()
    experiment.close()
    return GenerationCase(name, policy.model, policy.renderer.end_ids, waves)


def conversation(
    model: PreTrainedModel | None = None, *, tasks: int = 16, siblings: int = 4
) -> GenerationCase:
    """Return conversations of four turns, which begin with equal rules. Siblings have the same task
    and different answers."""
    model = model or build_model(len(build_tokenizer([])), seed=0, intermediate=352)
    rng, engine = Random(0), TransformersEngine()
    engine.serve("base", model, [])

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(10, 200) for _ in range(count))

    rules = words(SYSTEM)
    prompts = [prompt for _ in range(tasks) for prompt in [rules + words(MESSAGE)] * siblings]
    waves = []
    for turn in range(TURNS):
        first = turn * len(prompts)
        wave = [
            Request(id=n, policy="base", prompt_ids=prompt, seed=n, max_tokens=NEW)
            for n, prompt in enumerate(prompts, first)
        ]
        waves += [wave, []]  # two steps sample 33 tokens
        found = GenerationCase("", model, [], [wave]).answer(engine)
        prompts = [
            (*prompt, *found[n].completion_ids, *words(MESSAGE))
            for n, prompt in enumerate(prompts, first)
        ]
    return GenerationCase("conversation", model, [], waves)


def measured(case: GenerationCase, rounds: int, way: str) -> list[Line]:
    """Return the seconds and the computed tokens of both ways."""
    engine = TransformersEngine()
    engine.serve("base", case.model, case.end_ids)
    answers: dict[str, dict[int, Completion]] = {}
    computed: dict[str, float] = {}

    def ours() -> None:
        engine.drain_metrics()
        answers["ours"] = case.answer(engine)
        computed["ours"] = engine.drain_metrics()["computed_tokens"]

    def other() -> None:
        with OTHER_WAYS[way](engine):
            engine.drain_metrics()
            answers["other"] = case.answer(engine)
            computed["other"] = engine.drain_metrics()["computed_tokens"]

    seconds = interleaved({"ours": ours, "other": other}, rounds)
    requests = [request for wave in case.waves for request in wave]
    differing = sum(
        answers["ours"][each.id].completion_ids != answers["other"][each.id].completion_ids
        for each in requests
    )
    if differing:
        print(f"{case.name}: {differing} of {len(requests)} samples differ", file=sys.stderr)
    histories = [
        each.prompt_ids + answers["ours"][each.id].completion_ids[:-1] for each in requests
    ]
    floor = len({ids[:end] for ids in histories for end in range(1, len(ids) + 1)})
    size = sum(parameter.numel() for parameter in case.model.parameters()) / 1e6
    what = f"generation, {case.name}, {len(requests)} requests, {size:.1f} M parameters"
    ratio = computed["other"] / computed["ours"]
    return [
        compared(what, seconds["ours"], seconds["other"], target=1.0),
        Line(
            what=f"the same: computed tokens; {floor:,} are distinct",
            ours=computed["ours"],
            other=computed["other"],
            unit="tokens",
            ratio=ratio,
            low=ratio,
            high=ratio,
        ),
    ]


if __name__ == "__main__":
    main()
