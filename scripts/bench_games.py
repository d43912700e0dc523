"""Counts the tokens that a rollout computes with games in progress first, and in order of arrival.

Games of several turns, each turn in one conversation, are played by a tiny model in an engine whose
batch has few rows, and whose prefix cache holds 1.5 times the conversations of a full batch. There
are many more games than rows. Ours serves the requests of games in progress first; the other way
serves requests in the order in which they came, so that all games take their first turns before any
takes its second turn. Both ways play the same games.

With `--arenas waiting` every move waits for 10 ms in one of two threads of arenas. With
`--engine vllm`, which needs the environment of vLLM, the tokens are those of prompts that vLLM does
not find in its prefix cache. `--fits 0.5` makes a cache for the conversations of half of the rows.

Usage: python scripts/bench_games.py [--games 64] [--rows 4] [--turns 8] [--rounds 2]
           [--arenas instant waiting] [--engine transformers|vllm] [--fits 1.5] [--json FILE]
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import torch
from bench_timing import Line, arguments, compared, show

from selfplay.arena import Arena
from selfplay.engines import Engine, request_queue
from selfplay.engines.transformers import TransformersEngine
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.types import Action, Episode, Observation, Request, Task

RULES, MESSAGE, NEW = 80, 24, 8
"""Characters of the rules and of a message, and tokens of an answer."""
WAIT, THREADS = 0.01, 2
GROUP = 4
"""Number of games of one task."""


class Talk(Arena):
    """One agent gets a message of its own game in each of several turns."""

    name = "talk_v0"
    roles = {"player": 1}

    def setup(self, task: Task, rng: Random) -> None:
        self.rng, self.left = rng, int(task.payload["turns"])

    def acting(self) -> Sequence[str]:
        return ["player_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text=text(self.rng, MESSAGE))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.left -= 1
        if not self.left:
            self.finish()


class Waiting(Talk):
    """The same talk, whose moves wait in threads."""

    blocking = True

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        time.sleep(WAIT)
        super().advance(actions)


ARENAS: Mapping[str, type[Arena]] = {"instant": Talk, "waiting": Waiting}


def text(rng: Random, characters: int) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(characters))


def arrival(request: Request) -> tuple[int, int]:
    """Return the key that serves requests in the order in which they came."""
    return 0, request.id


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--arenas", nargs="+", choices=ARENAS, default=list(ARENAS))
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--fits", type=float, default=1.5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    renderer = ChatRenderer(build_tokenizer([]), where="bench")
    model = build_model(len(renderer.tokenizer), seed=0).eval()
    longest = RULES + options.turns * (MESSAGE + NEW + 10) + 20
    cache = round(options.fits * options.rows * longest)
    engine = engine_of(options.engine, rows=options.rows, cache=cache, longest=longest)
    engine.serve("base", model, renderer.end_ids)
    agent_spec = AgentSpec(
        role=Role(memory="conversation", system=text(Random(0), RULES)),
        policy="base",
        renderer=renderer,
        max_tokens=NEW,
    )
    task = Task(id="t", payload={"turns": options.turns})
    specs = [
        EpisodeSpec(task=task, seed=game // GROUP, member=game % GROUP)
        for game in range(options.games)
    ]

    def play(arena: type[Arena], key: Any) -> tuple[list[Episode], float, float]:
        """Return the episodes, the computed tokens and the seconds of processor time."""
        engines = {"base": engine}
        rollout = Rollout(
            arena=arena,
            agent_specs={"player": agent_spec},
            engines=engines,
            settings=RolloutSettings(threads=THREADS),
        )
        engine.drain_metrics()
        began = time.process_time()
        with mock.patch.object(request_queue, "order", key):
            episodes = rollout.run(specs)
        return episodes, computed(engine.drain_metrics()), time.process_time() - began

    lines: list[Line] = []
    for name in options.arenas:
        ways = {"ours": request_queue.order, "other": arrival}
        tokens: dict[str, list[float]] = {way: [] for way in ways}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        played: dict[str, list[Episode]] = {}
        for number in range(options.rounds):
            for way in list(ways) if number % 2 else list(ways)[::-1]:
                played[way], count, spent = play(ARENAS[name], ways[way])
                tokens[way].append(count)
                seconds[way].append(spent)
        sampled = {
            way: [[turn.completion_ids for turn in episode.turns] for episode in episodes]
            for way, episodes in played.items()
        }
        assert sampled["ours"] == sampled["other"], "the order changed a sample"
        what = f"{options.games} games of {options.turns} turns, {options.rows} rows, {name} arenas"
        what += f", {options.engine}"
        floor = len({ids for episode in played["ours"] for ids in prefixes(episode)})
        lines += [
            replace(
                compared(
                    f"{what}: computed tokens; {floor:,} are distinct",
                    tokens["ours"],
                    tokens["other"],
                ),
                unit="tokens",
            ),
            compared(f"{what}: CPU seconds", seconds["ours"], seconds["other"]),
        ]
    engine.close()
    show(lines, options.json)


def engine_of(kind: str, *, rows: int, cache: int, longest: int) -> Engine:
    """Return an engine whose prefix cache holds `cache` tokens."""
    if kind == "transformers":
        return TransformersEngine(max_rows=rows, prefix_tokens=cache)
    from selfplay.engines.vllm.engine import VLLMEngine

    size = 4 * 2 * 128 * 4  # bytes of a token: layers, keys and values, width, float32
    return VLLMEngine(
        max_rows=rows,
        max_length=longest,
        cache=cache * size / 2**30,
        options={"block_size": 32},
    )


def computed(counts: Mapping[str, float]) -> float:
    """Return the tokens in forward passes; of vLLM, the prompt tokens that were not cached."""
    if "computed_tokens" in counts:
        return counts["computed_tokens"]
    return counts["prompt_tokens"] - counts["cached_tokens"]


def prefixes(episode: Episode) -> list[tuple[int, ...]]:
    """Return the distinct tokens of a conversation, each as the whole text up to it."""
    last = episode.turns[-1]
    ids = (*last.prompt_ids, *last.completion_ids[:-1])
    return [ids[:end] for end in range(1, len(ids) + 1)]


if __name__ == "__main__":
    main()
