"""Measurement of this machine: peaks of the CPU, and speed of engine, learner and rollout.

Engine and learner are timed on small models of several sizes, and costs are fitted to the timings.
No experiment uses these models, so that no run is predicted from a measurement of itself.
The number of threads is torch's own: OMP_NUM_THREADS=1 measures a run with run.threads=1.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from transformers import Qwen3ForCausalLM

from selfplay.arena import Arena
from selfplay.config.instantiate import TARGET
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.engines.scripted import ScriptedEngine, constant
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import RunError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.plan.cluster import GB, HARDWARE, ClusterSpec, Device, Rates
from selfplay.plan.model_shape import ModelShape, of_config
from selfplay.plan.step_time import shared
from selfplay.role import Role
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.run import metrics
from selfplay.sandbox import Call, Executor
from selfplay.types import Action, Group, InvalidAction, Observation, Request, Sample, Task, Turn

VOCABULARY = 300
"""Number of tokens of the models' vocabulary."""
ROUNDS = 5
"""Number of measurements of each time."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A small model, with requests to it and samples made of them."""

    layers: int
    """Number of layers of the model."""
    hidden: int
    """Width of the model."""
    requests: int
    """Number of requests at once."""
    prompts: int
    """Number of distinct prompts among the requests."""
    prompt: int
    """Tokens per prompt."""
    new: int
    """Tokens per completion."""

    def model(self) -> Qwen3ForCausalLM:
        """Build the model with random weights."""
        wide = 3 * self.hidden
        return build_model(
            VOCABULARY, seed=0, layers=self.layers, hidden=self.hidden, heads=2, intermediate=wide
        )

    @cached_property
    def outline(self) -> ModelShape:
        """Shape of the model."""
        with torch.device("meta"):
            return of_config(self.model().config, where="probe")

    def generating(self) -> list[float]:
        """Return the engine's work: steps, steps x layers, steps x requests, requests,
        operations."""
        outline, steps = self.outline, self.new
        body = 2 * outline.layers * outline.layer_parameters * self.prompt
        read = self.prompts * (body + outline.attention(self.prompt, 0))
        token = 2 * outline.matrices * steps + outline.attention(steps, self.prompt)
        operations = read + self.requests * token
        return [steps, steps * self.layers, steps * self.requests, self.requests, operations]

    def learning(self) -> list[float]:
        """Return the learner's work: updates (1), layers, samples, operations."""
        length = self.prompt + self.new
        tokens = self.requests * length
        distinct = self.prompts * self.prompt + self.requests * self.new
        saving = shared(tokens / distinct)
        squares = self.requests * length**2
        completions = self.requests * self.new
        forward = self.outline.forward(tokens / saving, squares / saving, completions)
        return [1, self.layers, self.requests, 3 * forward]

    def works(self) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return two functions: one generates once, one learns once."""
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
        # With a learning rate of 0 the model does not change.
        learner = Learner(
            model, objective=PolicyLoss(ratio="none", clip="none"), settings=LearnerSettings(lr=0.0)
        )

        def generate() -> None:
            engine.forget()  # every call does the same work
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
"""Models from a game's size to a few million parameters, with small and large batches, and with
shared and distinct prompts."""


def _turn(request: Request, completion: tuple[int, ...]) -> Turn:
    return Turn(
        agent="player_0",
        role="player",
        policy="base",
        version=0,
        prompt_ids=request.prompt_ids,
        completion_ids=completion,
        logprobs=(-5.0,) * len(completion),
        loss_mask=(1,) * len(completion),
    )


def timings(probes: Sequence[Probe] = PROBES, *, rounds: int = ROUNDS) -> list[tuple[float, float]]:
    """Measure (seconds of generation, of learning) of every probe, as medians over the rounds.

    A round has all probes, one after another.
    """
    works = [work for probe in probes for work in probe.works()]
    seconds: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for index, work in enumerate(works):
            begin = time.perf_counter()
            work()
            if number:  # the first round is a warm-up
                seconds[index].append(time.perf_counter() - begin)
    found = [median(each) for each in seconds]
    return list(zip(found[::2], found[1::2], strict=True))


def fit(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Fit non-negative costs of the features to timings by least squares of the relative errors.

    Args:
        features: For each timing, the amount of work of each kind, as `Probe.generating` gives it.
        seconds: The timings.
    Returns:
        Seconds per unit of each kind of work; 0 for a kind whose fitted cost would be negative.
    """
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


def measure(report: Callable[[str], None] = print) -> ClusterSpec:
    """Measure this machine as a cluster of one process. This takes about a minute.

    `report` is called with lines about the progress. Raises RunError if the timings fit no rates.
    """
    threads = torch.get_num_threads()
    report(f"measuring {threads} thread(s); other load on the machine distorts the result")
    peak, bandwidth = products(), streams()
    report(f"matrix products {peak / 1e9:.0f} GFLOP/s, memory {bandwidth / GB:.1f} GB/s")
    timed = timings()
    engine = fit([probe.generating() for probe in PROBES], [seconds for seconds, _ in timed])
    taught = fit([probe.learning() for probe in PROBES], [seconds for _, seconds in timed])
    if not engine[-1] or not taught[-1]:
        raise RunError(
            "the timings fit no rates; measure again with less other load on the machine"
        )
    generating, learning = 1 / (engine[-1] * peak), 1 / (taught[-1] * peak)
    report(f"of these, the engine reaches {generating:.0%} and the learner {learning:.0%}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    episode, turn = hosted()
    rates = Rates(
        train=_around(learning),
        forward=_around(learning),
        prefill=_around(generating),
        bandwidth=_around(1.0),
        step=engine[0],
        layer=engine[1],
        row=engine[2],
        request=engine[3],
        update=taught[0],
        update_layer=taught[1],
        sample=taught[2],
        episode=episode,
        turn=turn,
        call=calls(),
    )
    device = Device(
        name=f"{platform.processor() or platform.machine()}, {threads} thread(s)",
        memory=round(memory, 1),
        bandwidth=bandwidth / GB,
        tflops=peak / 1e12,
        link=bandwidth / GB,
        rates=rates,
        kind="cpu",
        basis="calibrated",
    )
    return ClusterSpec(
        device=device,
        node=1,
        host=round(memory, 1),
        reserved=1.0,
        engine_reserved=0.5,
        overhead=1.0,
    )


def to_yaml(cluster: ClusterSpec) -> str:
    """Return a cluster as the text of a file for `cluster=FILE`."""
    plain = {key: value for key, value in asdict(cluster).items() if key in HARDWARE}
    plain["device"]["rates"] = {TARGET: _target(Rates), **plain["device"]["rates"]}
    plain["device"] = {TARGET: _target(Device), **plain["device"]}
    text = yaml.safe_dump(_lists({TARGET: _target(ClusterSpec), **plain}), sort_keys=False)
    return f"# Measured. GB, GB/s, 1e12 operations per second, seconds.\n{text}"


def _target(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _around(share: float) -> tuple[float, float, float]:
    """Return a measured fraction with the range in which timings of one machine drift."""
    return (share / 1.25, share, share * 1.25)


# The machine ------------------------------------------------------------------------------------


def products() -> float:
    """Measure the operations per second of a float32 matrix product, the best of `ROUNDS`."""
    size = 2048
    a, b = torch.ones(size, size), torch.ones(size, size)
    return 2 * size**3 / min(_times(lambda: torch.mm(a, b)))


def streams() -> float:
    """Measure the bytes per second of the sum of two arrays that are far larger than the cache."""
    count = 24_000_000
    a, b, c = (torch.ones(count) for _ in range(3))
    return 12 * count / min(_times(lambda: torch.add(a, b, out=c)))


def _times(work: Callable[[], object]) -> list[float]:
    work()
    found = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


# Arenas and services ----------------------------------------------------------------------------


class Counting(Arena):
    """A minimal game in which two players alternately say a word, to measure rollout costs."""

    name = "counting_v0"

    def __init__(self, *, turns: int) -> None:
        super().__init__({"player": 2})
        self.turns = turns

    def setup(self, task: Task, rng: Random) -> None:
        """Start a game without words."""
        self.said: list[str] = []

    def acting(self) -> Sequence[str]:
        """Return the player whose turn it is."""
        return [self.possible_agents[len(self.said) % 2]]

    def view(self, agent: str) -> Observation:
        """Return the words so far."""
        fields = {"agent": agent, "said": self.said, "words": ["yes", "no", "word"]}
        return Observation(text=" ".join(self.said), fields=fields)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Append the word and pay the player; finish after the last turn."""
        for agent, action in actions.items():
            self.said.append(action or "nothing")
            self.pay(agent, float(action is not None))
        if len(self.said) == self.turns:
            self.metrics = {"said": float(len(self.said)), "words": float(len(set(self.said)))}
            self.finish()


class Speaker(Role):
    """A role that says one of the words in its observation."""

    template = (
        "You are {{ agent }}. {% if said %}So far: {{ said | join(', ') }}.{% endif %}\n"
        "{% for word in words %}{{ word }} {% endfor %}\nYours?"
    )

    def parse(self, text: str) -> Action:
        """Return the word in lower case."""
        word = text.strip().lower()
        if not word.isalpha():
            raise InvalidAction("no_word")
        return word


def hosted(games: int = 120) -> tuple[float, float]:
    """Measure the seconds per episode and per turn outside the model: rollout, metrics, credit."""
    few, many = 2, 10
    short, long = (median(_times(partial(_host, turns, games))) / games for turns in (few, many))
    turn = max(0.0, (long - short) / (many - few))
    return max(0.0, short - few * turn), turn


def _host(turns: int, games: int) -> None:
    """Play games with a scripted engine, and compute their metrics and credit in groups of 8."""
    agent_spec = AgentSpec(
        role=Speaker(),
        policy="base",
        renderer=ChatRenderer(build_tokenizer(["words"]), where="probe"),
        max_tokens=8,
    )
    rollout = Rollout(
        arena=partial(Counting, turns=turns),
        agent_specs={"player": agent_spec},
        engines={"base": ScriptedEngine({"base": constant("word")})},
    )
    specs = [EpisodeSpec(task=Task(id="count"), seed=n // 8, member=n % 8) for n in range(games)]
    episodes = rollout.run(specs)
    metrics.of_episodes(episodes)
    groups = [
        Group(id=str(n), episodes=tuple(episodes[n : n + 8])) for n in range(0, len(episodes), 8)
    ]
    DrGRPO().assign(groups)


def calls(count: int = 60) -> float:
    """Measure the seconds per call of a busy executor with one worker; each call is run twice."""
    program = "def f(text, n):\n    return sorted(text.split() * n)[:{}]"
    batch = [
        Call(program=program.format(number), arguments="'a quick brown fox', 3")
        for number in range(count)
    ]
    with Executor(workers=1, cache_size=0) as executor:
        executor.run(batch[:4], runs=2)  # starts the processes
        begin = time.perf_counter()
        executor.run(batch, runs=2)
        return (time.perf_counter() - begin) / count
