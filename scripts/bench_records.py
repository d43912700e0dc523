"""Times turns that are sent to a process or recorded, and measures their memory in the driver.

Ours is `selfplay.types.Turn`, which stores numbers in few bytes and shares them between prompts.
The other way is that of this library until version 0.2: the same turns with tuples of Python's
numbers, and a line of `json.dumps`. Two kinds of steps: conversations of 8 turns, whose prompts
repeat all earlier turns, and 8 siblings of 1,000 tokens per prompt. CPU seconds per million tokens,
prompts included. A step has 288,000 and 192,000 tokens, or with `--tokens` at least so many
millions.

Usage: python scripts/bench_records.py [--rounds 5] [--tokens MILLIONS] [--json FILE]
"""

import gc
import json
import math
import pickle
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
from bench_timing import Line, arguments, compared, show
from pydantic import TypeAdapter

from selfplay.number_array import NumberArray
from selfplay.rollout.shared_prompts import sharing_prompts
from selfplay.run.json_lines import JsonLines
from selfplay.types import (
    Action,
    Episode,
    Message,
    Status,
    StopReason,
    Task,
    Turn,
    Versions,
)

CHEAPER = 5.0
"""Smallest allowed ratio of the other way's cost to ours."""
EPISODES, TURNS, ANSWERED, OBSERVED = 16, 8, 400, 100
PROMPT, ANSWER = 500, 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class TupleTurn:
    """A turn as this library kept it until version 0.2, the way that ours is compared with. Later
    fields are left out."""

    agent: str
    role: str
    policy: str
    version: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    temperature: float = 1.0
    messages: tuple[Message, ...] = ()
    text: str = ""
    action: Action | None = None
    reward: float = 0.0
    stage: int = -1
    stop_reason: StopReason = StopReason.STOP
    info: Mapping[str, Any] = field(default_factory=dict)
    trainable: bool = True
    versions: Versions = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TupleEpisode:
    """An episode as this library kept it until version 0.2, with the fields that the comparison
    needs."""

    arena: str
    task: Task
    seed: int
    turns: tuple[TupleTurn, ...]
    status: Status


ADAPTER = TypeAdapter(TupleEpisode)


def new_turn(rng: Random, prompt: Any, count: int) -> Turn:
    ids = tuple(rng.randrange(49_152) for _ in range(count))
    nats = np.array([-rng.expovariate(1) for _ in range(count)], dtype=np.float32)
    return Turn(
        agent="player_0",
        role="player",
        policy="base",
        version=0,
        prompt_ids=prompt,
        completion_ids=ids,
        logprobs=nats.tolist(),
        loss_mask=NumberArray.ones(count),
    )


def episode(seed: int, turns: list[Turn]) -> Episode:
    return Episode(
        arena="x", task=Task(id="t"), seed=seed, turns=tuple(turns), status=Status.FINISHED
    )


def conversations(size: int) -> list[Episode]:
    """Return conversations: every prompt is the one before, the answer to it, and a new
    observation."""
    made = []
    for number in range(EPISODES * size):
        rng = Random(number)
        turns: list[Turn] = []
        prompt: tuple[int, ...] = ()
        for _ in range(TURNS):
            prompt = (*prompt, *(rng.randrange(49_152) for _ in range(OBSERVED)))
            turns.append(new_turn(rng, prompt, ANSWERED))
            prompt = (*prompt, *turns[-1].completion_ids)
        made.append(sharing_prompts(episode(number, turns)))
    return made


def siblings(size: int) -> list[Episode]:
    """Return eight answers to every prompt."""
    made = []
    for number in range(EPISODES * 8 * size):
        if number % 8 == 0:
            ids = [Random(number).randrange(49_152) for _ in range(PROMPT)]
            prompt = NumberArray.of(ids, "integers")
        made.append(episode(number, [new_turn(Random(number), prompt, ANSWER)]))
    return made


def in_tuples(made: Episode, prompts: dict[tuple[int, ...], tuple[int, ...]]) -> TupleEpisode:
    """Return the same episode as until version 0.2: in tuples, with equal prompts as one object."""
    turns = []
    for turn in made.turns:
        values = {each.name: getattr(turn, each.name) for each in fields(TupleTurn)}
        for name in ("prompt_ids", "completion_ids", "logprobs", "loss_mask"):
            values[name] = tuple(values[name])
        values["prompt_ids"] = prompts.setdefault(values["prompt_ids"], values["prompt_ids"])
        turns.append(TupleTurn(**values))
    return TupleEpisode(
        arena=made.arena, task=made.task, seed=made.seed, turns=tuple(turns), status=made.status
    )


def tokens_of(episodes: list[Episode]) -> int:
    """Return the number of tokens of prompts and completions."""
    turns = [turn for each in episodes for turn in each.turns]
    return sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in turns)


def record(episodes: list[Episode]) -> int:
    written = JsonLines()
    return sum(len(written.line({"episode": each})) for each in episodes)


def record_tuples(episodes: list[TupleEpisode]) -> int:
    """Write the records as until version 0.2; return the number of characters."""
    return sum(
        len(json.dumps({"episode": ADAPTER.dump_python(each, mode="json")})) for each in episodes
    )


def hop(episodes: Any) -> int:
    return len(pickle.loads(pickle.dumps(episodes, protocol=5)))


def memory(episodes: Any) -> int:
    """Return the bytes that arrive in another process."""
    sent = pickle.dumps(episodes, protocol=5)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    arrived = pickle.loads(sent)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del arrived
    return after - before


def timed(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of every work; the works run in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in list(works) if number % 2 else list(works)[::-1]:
            began = time.process_time()
            works[name]()
            if number:
                seconds[name].append(time.process_time() - began)
    return seconds


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=float, default=0.0, help="millions of tokens of a step")
    options = parser.parse_args()
    lines: list[Line] = []
    for kind, make in (("conversations", conversations), ("siblings", siblings)):
        made = make(max(1, math.ceil(options.tokens * 1e6 / tokens_of(make(1)))))
        prompts: dict[tuple[int, ...], tuple[int, ...]] = {}
        old = [in_tuples(each, prompts) for each in made]
        tokens = tokens_of(made)
        seconds = timed(
            {
                "record": partial(record, made),
                "record then": partial(record_tuples, old),
                "hop": partial(hop, made),
                "hop then": partial(hop, old),
            },
            options.rounds,
        )
        for name, what in (("record", "a record"), ("hop", "a hop between processes")):
            ours = [value / tokens * 1e6 for value in seconds[name]]
            then = [value / tokens * 1e6 for value in seconds[f"{name} then"]]
            line = compared(f"{what} of {kind}, compared with tuples", ours, then, target=CHEAPER)
            lines.append(replace(line, unit="s/M"))
        bytes_now, bytes_then = memory(made) / tokens, memory(old) / tokens
        lines.append(
            Line(
                what=f"memory of {kind} in the driver, compared with tuples",
                ours=bytes_now,
                other=bytes_then,
                unit="B/token",
                ratio=bytes_then / bytes_now,
                low=bytes_then / bytes_now,
                high=bytes_then / bytes_now,
                target=CHEAPER,
            )
        )
    show(lines, options.json)


if __name__ == "__main__":
    main()
