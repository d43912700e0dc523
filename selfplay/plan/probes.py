"""Small models of several sizes on which engine and learner are timed, and what fits the timings.

None of them is an experiment's, so that predicting a run is no repetition of its own measurement.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen3ForCausalLM

from selfplay.engines.transformers import TransformersEngine
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Objective
from selfplay.plan.outline import Outline, of_config
from selfplay.plan.phases import shared
from selfplay.tiny import build_model
from selfplay.types import Request, Sample, Turn

VOCABULARY = 300


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A model, and requests to it that are then learned from."""

    layers: int
    """Of the model."""
    hidden: int
    """Its width."""
    requests: int
    """Completions asked for at once."""
    prompts: int
    """Different prompts among them."""
    prompt: int
    """Tokens of each."""
    new: int
    """Tokens of each completion."""

    def model(self) -> Qwen3ForCausalLM:
        """With random weights."""
        wide = 3 * self.hidden
        return build_model(
            VOCABULARY, seed=0, layers=self.layers, hidden=self.hidden, heads=2, intermediate=wide
        )

    @cached_property
    def outline(self) -> Outline:
        """Its sizes."""
        with torch.device("meta"):
            return of_config(self.model().config, where="probe")

    def generating(self) -> list[float]:
        """What an engine is given to do: steps, layers in steps, rows in steps, requests,
        operations."""
        outline, steps = self.outline, self.new
        body = 2 * outline.layers * outline.layer_parameters * self.prompt
        read = self.prompts * (body + outline.attention(self.prompt, 0))
        token = 2 * outline.matrices * steps + outline.attention(steps, self.prompt)
        operations = read + self.requests * token
        return [steps, steps * self.layers, steps * self.requests, self.requests, operations]

    def learning(self) -> list[float]:
        """What a learner is given to do: an update, its layers, samples, operations."""
        length = self.prompt + self.new
        tokens = self.requests * length
        distinct = self.prompts * self.prompt + self.requests * self.new
        saving = shared(tokens / distinct)
        squares = self.requests * length**2
        completions = self.requests * self.new
        forward = self.outline.forward(tokens / saving, squares / saving, completions)
        return [1, self.layers, self.requests, 3 * forward]

    def works(self) -> tuple[Callable[[], object], Callable[[], object]]:
        """Generating once, and learning once."""
        model, rng = self.model(), Random(0)
        engine = TransformersEngine()
        engine.serve("base", model, ())
        texts = [self._ids(rng, self.prompt) for _ in range(self.prompts)]
        requests = [
            Request(
                id=number,
                policy="base",
                prompt_ids=texts[number % self.prompts],
                seed=number,
                max_tokens=self.new,
            )
            for number in range(self.requests)
        ]
        samples = [
            Sample(turn=_turn(request, self._ids(rng, self.new)), advantage=rng.choice((-1, 1)))
            for request in requests
        ]
        # A learning rate of nothing: the probe stays what it is.
        learner = Learner(model, objective=Objective(ratio="none", clip="none"), lr=0.0)

        def generate() -> None:
            for request in requests:
                engine.add(request)
            left = self.requests
            while left:
                left -= len(engine.step())

        return generate, lambda: learner.update(samples, step=1)

    @staticmethod
    def _ids(rng: Random, count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))


PROBES = tuple(
    Probe(layers=layers, hidden=hidden, requests=requests, prompts=prompts, prompt=prompt, new=new)
    for layers, hidden, requests, prompts, prompt, new in (
        (1, 32, 64, 4, 8, 24),
        (1, 32, 480, 8, 8, 2),
        (1, 64, 256, 32, 24, 12),
        (2, 64, 96, 96, 32, 24),
        (3, 96, 48, 48, 24, 32),
        (3, 160, 192, 24, 24, 24),
        (6, 128, 96, 16, 32, 16),
        (2, 256, 64, 64, 48, 16),
        (5, 128, 360, 45, 24, 16),
    )
)
"""From a game's model to a few million parameters, few rows and many, prompts shared and not."""


def _turn(request: Request, completion: tuple[int, ...]) -> Turn:
    return Turn(
        agent="player_0",
        role="player",
        policy="base",
        version=0,
        prompt_ids=request.prompt_ids,
        completion_ids=completion,
        logprobs=(-5.0,) * len(completion),
        trainable=(1,) * len(completion),
    )


def timings(probes: Sequence[Probe] = PROBES, *, rounds: int = 5) -> list[tuple[float, float]]:
    """(seconds of generating, of learning) for every probe: medians of rounds in turns."""
    works = [work for probe in probes for work in probe.works()]
    seconds: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for place, work in enumerate(works):
            begin = time.perf_counter()
            work()
            if number:  # the first warms up
                seconds[place].append(time.perf_counter() - begin)
    found = [median(each) for each in seconds]
    return list(zip(found[::2], found[1::2], strict=True))


def fit(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Costs of the features, none below 0, with the least sum of squared relative errors."""
    rows = np.array(features, dtype=float) / np.array(seconds)[:, None]
    scale = rows.max(axis=0)
    kept = list(range(rows.shape[1]))
    found: NDArray[np.float64] = np.zeros(rows.shape[1])
    while kept:
        part = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)[0]
        if part.min() >= 0:
            found[kept] = part / scale[kept]
            break
        del kept[int(part.argmin())]
    return [float(cost) for cost in found]
