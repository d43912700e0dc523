"""Measuring this machine: what a CPU's peaks are, and what engine, learner and rollout reach.

Threads are torch's own number: OMP_NUM_THREADS=1 measures what run.threads=1 gets.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from random import Random
from statistics import median
from typing import Any

import torch
import yaml

from selfplay import metrics
from selfplay.arena import Arena
from selfplay.build import TARGET
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.engines.scripted import ScriptedEngine, constant
from selfplay.errors import RunError
from selfplay.executor import Call, Executor
from selfplay.game import Job
from selfplay.plan.cluster import GB, Cluster, Device, Rates
from selfplay.plan.probes import PROBES, fit, timings
from selfplay.role import Role
from selfplay.rollout import Rollout, Seat
from selfplay.tiny import build_tokenizer
from selfplay.tokens import ChatRenderer
from selfplay.types import Action, Group, InvalidAction, Observation, Task

ROUNDS = 5


def measure(report: Callable[[str], None] = print) -> Cluster:
    """This machine as a cluster of one process; takes about a minute."""
    threads = torch.get_num_threads()
    report(f"measuring {threads} thread(s); other work on the machine is measured with it")
    peak, bandwidth = products(), streams()
    report(f"matrix products {peak / 1e9:.0f} GFLOP/s, memory {bandwidth / GB:.1f} GB/s")
    timed = timings()
    engine = fit([probe.generating() for probe in PROBES], [seconds for seconds, _ in timed])
    taught = fit([probe.learning() for probe in PROBES], [seconds for _, seconds in timed])
    if not engine[-1] or not taught[-1]:
        raise RunError("the timings do not fit any rates: measure again when less else is running")
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
        basis="calibrated",
    )
    return Cluster(
        device=device,
        node=1,
        host=round(memory, 1),
        precision="float32",
        same_weights=True,
        checkpointing=False,
        logits=0,
        sequences=1024,
        reserved=1.0,
        engine_reserved=0.5,
        pause=0.0,
        overhead=1.0,
    )


def to_yaml(cluster: Cluster) -> str:
    """A cluster as a file that `cluster=FILE` reads."""
    plain = asdict(cluster)
    plain["device"]["rates"] = {TARGET: _target(Rates), **plain["device"]["rates"]}
    plain["device"] = {TARGET: _target(Device), **plain["device"]}
    text = yaml.safe_dump(_lists({TARGET: _target(Cluster), **plain}), sort_keys=False)
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
    """A measured share with the band within which timings of one machine drift."""
    return (share / 1.25, share, share * 1.25)


# The machine ------------------------------------------------------------------------------------


def products(size: int = 2048) -> float:
    """Operations per second of a float32 matrix product, the best of five."""
    a, b = torch.ones(size, size), torch.ones(size, size)
    return 2 * size**3 / min(_times(lambda: torch.mm(a, b)))


def streams(count: int = 24_000_000) -> float:
    """Bytes per second of adding two arrays far larger than a cache into a third."""
    a, b, c = (torch.ones(count) for _ in range(3))
    return 12 * count / min(_times(lambda: torch.add(a, b, out=c)))


def _times(work: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    work()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


# Arenas and services ----------------------------------------------------------------------------


class Counting(Arena):
    """Two players say a word in turns; as small as the games of which a step has hundreds."""

    name = "counting_v0"

    def __init__(self, *, turns: int) -> None:
        super().__init__({"player": 2})
        self.turns = turns

    def setup(self, task: Task, rng: Random) -> None:
        """Begin at nought."""
        self.said: list[str] = []

    def acting(self) -> Sequence[str]:
        """One after the other."""
        return [self.possible_agents[len(self.said) % 2]]

    def view(self, agent: str) -> Observation:
        """What was said."""
        fields = {"agent": agent, "said": self.said, "words": ["yes", "no", "word"]}
        return Observation(text=" ".join(self.said), fields=fields)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Count."""
        for agent, action in actions.items():
            self.said.append(action or "nothing")
            self.pay(agent, float(action is not None))
        if len(self.said) == self.turns:
            self.metrics = {"said": float(len(self.said)), "words": float(len(set(self.said)))}
            self.finish()


class Speaker(Role):
    """Says one of the words that the observation lists."""

    template = (
        "You are {{ agent }}. {% if said %}So far: {{ said | join(', ') }}.{% endif %}\n"
        "{% for word in words %}{{ word }} {% endfor %}\nYours?"
    )

    def parse(self, text: str) -> Action:
        """The word in small letters."""
        word = text.strip().lower()
        if not word.isalpha():
            raise InvalidAction("no_word")
        return word


def hosted(games: int = 120, few: int = 2, many: int = 10) -> tuple[float, float]:
    """Seconds per episode and per turn of all that is no model: rollout, figures and credit."""
    short, long = (median(_times(partial(_host, turns, games))) / games for turns in (few, many))
    turn = max(0.0, (long - short) / (many - few))
    return max(0.0, short - few * turn), turn


def _host(turns: int, games: int) -> None:
    """Play games with an engine that answers at once, and credit them in groups of eight."""
    seat = Seat(
        role=Speaker(),
        policy="base",
        renderer=ChatRenderer(build_tokenizer(["words"]), where="probe"),
        max_tokens=8,
    )
    rollout = Rollout(
        arena=partial(Counting, turns=turns),
        seats={"player": seat},
        engines={"base": ScriptedEngine({"base": constant("word")})},
    )
    jobs = [Job(task=Task(id="count"), seed=n // 8, member=n % 8) for n in range(games)]
    episodes = rollout.play(jobs)
    metrics.of_episodes(episodes)
    groups = [
        Group(id=str(n), episodes=tuple(episodes[n : n + 8])) for n in range(0, len(episodes), 8)
    ]
    DrGRPO().assign(groups)


def calls(count: int = 60) -> float:
    """Seconds per verified program run of a busy executor with one worker."""
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
