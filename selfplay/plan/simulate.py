"""Discrete-event simulation of steps: random lengths, idle engines, waiting learners.

Between two events an engine's batch is constant, so that decoding needs one event per completion
and not one per token. The simulation shows effects that the sums of `step_time` leave out:
differences between engines, the staleness of samples, and the cost of a limit on it.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Any

from selfplay.plan.prediction import GENERATING, Prediction
from selfplay.plan.step_time import Step, decode_step, living
from selfplay.plan.workload import Flow
from selfplay.run.formatting import number, time_text


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Results of a simulation, without the first third of the steps, which is the warm-up."""

    steps: Sequence[float]
    """Seconds of each step."""
    generating: float
    """Fraction of the time in which an engine is busy."""
    learning: float
    """Fraction of the time in which the learners are busy."""
    small: float
    """Fraction of the engines' busy time with fewer than 8 sequences."""
    ages: Sequence[int]
    """Staleness of each episode when it was learned from, in weight versions."""
    submitted: int
    """Number of started episodes."""
    consumed: int
    """Number of episodes that were learned from."""
    left: int
    """Number of episodes in progress or waiting at the end."""
    seed: int
    """Seed of the random lengths."""

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return fmean(self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data."""
        ages = sorted(self.ages)
        return {
            "step": self.step,
            "steps": list(self.steps),
            "generating": self.generating,
            "learning": self.learning,
            "small_batches": self.small,
            "age": {
                "mean": fmean(ages),
                "p99": ages[int(0.99 * (len(ages) - 1))],
                "max": ages[-1],
            },
            "submitted": self.submitted,
            "consumed": self.consumed,
            "left": self.left,
            "seed": self.seed,
            "basis": "simulated",
        }

    def lines(self) -> list[str]:
        """Format the results for a terminal."""
        age = self.to_json()["age"]
        return [
            f"simulated, {len(self.steps)} steps: {time_text(self.step)} a step "
            f"({time_text(min(self.steps))} to {time_text(max(self.steps))})",
            f"  busy: engines {self.generating:.0%} (with fewer than 8 sequences {self.small:.0%} "
            f"of it), learners {self.learning:.0%}",
            f"  staleness {number(age['mean'])} versions on average, 99 % at most {age['p99']}, "
            f"all at most {age['max']}",
        ]


@dataclass(eq=False)
class _Episode:
    """A chain of requests, each of which starts when the one before it ends."""

    chain: Sequence[tuple[Flow, float]]
    """(flow, tokens of the completion) of each request."""
    place: int = 0
    """Index of the present request."""
    version: int = -1
    """Version of the weights at the start of the first request; -1 before."""


@dataclass(eq=False)
class _Engine:
    """A copy of the engine: its decoding steps so far, and the step at which each request ends."""

    step: Step
    limit: int
    """Largest number of concurrent sequences."""
    clock: float = 0.0
    """Simulated seconds up to which the engine has decoded."""
    done: float = 0.0
    """Number of decoding steps so far."""
    context: float = 0.0
    """Tokens in the contexts of all running requests together."""
    running: list[tuple[float, int, _Episode]] = field(default_factory=list)
    """Heap of (value of `done` at which the request ends, number of the request, episode)."""
    waiting: deque[_Episode] = field(default_factory=deque)
    stamp: int = 0
    """Number of changes of the batch; an event with an older number is out of date."""
    busy: float = 0.0
    """Seconds with a request."""
    small: float = 0.0
    """Seconds with 1 to 7 requests."""

    def advance(self, now: float) -> None:
        """Decode until the time `now`."""
        elapsed, count = now - self.clock, len(self.running)
        self.clock = max(now, self.clock)
        if not count or elapsed <= 0:
            return
        pace = self.step(count, self.context)
        # One correction for contexts that grow in the meantime.
        steps = elapsed / pace
        pace = (pace + self.step(count, self.context + count * steps)) / 2
        steps = elapsed / pace
        self.done += steps
        self.context += count * steps
        self.busy += elapsed
        self.small += elapsed if count < 8 else 0.0

    def next(self) -> float:
        """Return the time at which the next completion ends if no request joins before."""
        count, steps = len(self.running), max(self.running[0][0] - self.done, 0.0)
        first = self.step(count, self.context)
        return self.clock + steps * (first + self.step(count, self.context + count * steps)) / 2


def simulate(prediction: Prediction, *, steps: int = 12, seed: int = 0) -> Simulation:
    """Simulate `steps` steps of a prediction's workload on its cluster.

    An episode is a chain of requests, one per flow, on the engine with the fewest episodes. If
    `lag` is 0, a step's episodes begin together and learning waits for the last of them. Otherwise
    an episode may begin while fewer than (version + lag + 1) x batch episodes have begun
    (2505.24298), and learning takes the episodes that ended first.
    """
    return _Simulator(prediction, seed).run(steps)


class _Simulator:
    def __init__(self, prediction: Prediction, seed: int) -> None:
        self.prediction, self.seed, self.rng = prediction, seed, Random(seed)
        workload, cluster = prediction.workload, prediction.cluster
        flows = workload.flows
        first = max(flows, key=lambda flow: flow.requests * flow.completion.mean)
        outline = prediction.members[first.policy].outline
        limit = min(living(flow, cluster, prediction.memory)[1] for flow in flows)
        self.engines = [
            _Engine(step=decode_step(outline, cluster), limit=max(1, min(limit, cluster.sequences)))
            for _ in range(cluster.engines)
        ]
        parts = prediction.seconds()
        learned = sum(v for k, v in parts.items() if k not in (*GENERATING, "publish"))
        self.learn, self.publish = learned, parts["publish"]
        self.fill = parts["prefill"] * cluster.engines / max(workload.turns, 1.0)
        self.lag, self.batch = cluster.lag, max(1, round(max(f.requests for f in flows)))
        self.version = self.submitted = self.consumed = self.numbers = 0
        self.ready: deque[_Episode] = deque()
        self.events: list[tuple[float, int, int, int]] = []
        self.ends: list[float] = []
        self.ages: list[list[int]] = []
        self.learner_busy, self.learning = 0.0, False
        self.loads = [0] * len(self.engines)

    def run(self, steps: int) -> Simulation:
        """Simulate until `steps` steps are learned."""
        self._submit(0.0)
        while len(self.ends) < steps:
            now, _, which, stamp = heapq.heappop(self.events)
            if which < 0:
                self._learned(now)
            elif self.engines[which].stamp == stamp:
                self._completed(now, which)
            if not self.learning and len(self.ready) >= self.batch and len(self.ends) < steps:
                self._learn(now)
        skipped = len(self.ends) // 3
        spans = [end - begin for begin, end in pairwise([0.0, *self.ends])][skipped:]
        for engine in self.engines:
            engine.advance(self.ends[-1])
        busy, whole = sum(e.busy for e in self.engines), self.ends[-1] * len(self.engines)
        return Simulation(
            steps=spans,
            generating=busy / whole,
            learning=self.learner_busy / self.ends[-1],
            small=sum(e.small for e in self.engines) / max(busy, 1e-9),
            ages=[age for ages in self.ages[skipped:] for age in ages],
            submitted=self.submitted,
            consumed=self.consumed,
            left=len(self.ready) + sum(len(e.running) + len(e.waiting) for e in self.engines),
            seed=self.seed,
        )

    def _submit(self, now: float) -> None:
        """Begin the episodes that the staleness limit allows."""
        allowed = (self.version + self.lag + 1) * self.batch - self.submitted
        for _ in range(allowed):
            self._join(now, _Episode(chain=self._chain()))
        self.submitted += allowed

    def _chain(self) -> list[tuple[Flow, float]]:
        """Draw the requests of one episode, with each flow in its fraction of the episodes."""
        flows = self.prediction.workload.flows
        taken = [flow for flow in flows if self.rng.random() < flow.requests / self.batch]
        return [(flow, flow.completion.draw(self.rng, 1)[0]) for flow in taken or flows[:1]]

    def _join(self, now: float, episode: _Episode) -> None:
        """Send an episode to the engine with the fewest episodes."""
        which = min(range(len(self.loads)), key=self.loads.__getitem__)
        self.loads[which] += 1
        engine = self.engines[which]
        engine.advance(now)
        engine.waiting.append(episode)
        self._admit(engine, which)

    def _admit(self, engine: _Engine, which: int) -> None:
        """Start waiting requests up to the limit; their prefill stops the running requests."""
        while engine.waiting and len(engine.running) < engine.limit:
            episode = engine.waiting.popleft()
            if episode.version < 0:
                episode.version = self.version
            flow, length = episode.chain[episode.place]
            self.numbers += 1
            heapq.heappush(engine.running, (engine.done + length, self.numbers, episode))
            engine.context += flow.prompt
            engine.clock += self.fill
        engine.stamp += 1
        if engine.running:
            heapq.heappush(self.events, (engine.next(), self.numbers, which, engine.stamp))

    def _completed(self, now: float, which: int) -> None:
        engine = self.engines[which]
        engine.advance(now)
        end, _, episode = heapq.heappop(engine.running)
        engine.done = max(engine.done, end)  # corrects rounding
        flow, length = episode.chain[episode.place]
        engine.context = max(0.0, engine.context - flow.prompt - length)
        episode.place += 1
        if episode.place < len(episode.chain):
            engine.waiting.append(episode)  # this engine has the episode's prefix in its cache
        else:
            self.loads[which] -= 1
            self.ready.append(episode)
        self._admit(engine, which)

    def _learn(self, now: float) -> None:
        """Start learning from a step's episodes; the engines may continue in the meantime."""
        taken = [self.ready.popleft() for _ in range(self.batch)]
        self.ages.append([self.version - episode.version for episode in taken])
        self.consumed += self.batch
        self.learning = True
        self.learner_busy += self.learn
        heapq.heappush(self.events, (now + self.learn + self.publish, 0, -1, 0))

    def _learned(self, now: float) -> None:
        """Finish a step, whose version is now published; publishing has stopped the engines."""
        self.learning = False
        self.version += 1
        self.ends.append(now)
        if self.lag:
            for which, engine in enumerate(self.engines):
                engine.advance(now - self.publish)
                engine.clock = max(engine.clock, now)
                self._admit(engine, which)
        self._submit(now)
