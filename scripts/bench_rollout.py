"""Times the rollout alone: hands of Kuhn poker by scripted players, on one core.

Templates, chat template, tokenizer and parsing are those of training; only the model is missing.

Usage: python scripts/bench_rollout.py [--hands 2000] [--rounds 5] [--json FILE]
"""

import os
import statistics

import torch
from bench_timing import Line, arguments, interleaved, show

from arenas.games.kuhn import Kuhn
from roles.player import Player
from selfplay.engines.scripted import ScriptedEngine, choice
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_tokenizer
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Task

TARGET = 5_000


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--hands", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    agent_spec = AgentSpec(
        role=Player(game="kuhn"),
        policy="base",
        renderer=ChatRenderer(build_tokenizer(["pass", "bet"]), where="bench"),
        max_tokens=8,
    )
    engine = ScriptedEngine({"base": choice(["pass", "bet"])})
    rollout = Rollout(arena=Kuhn, agent_specs={"player": agent_spec}, engines={"base": engine})
    played: list[int] = []
    starts = iter(range(10_000))

    def play() -> None:
        start = next(starts) * options.hands
        specs = [
            EpisodeSpec(task=Task(id="hand"), seed=start + hand) for hand in range(options.hands)
        ]
        played.append(sum(len(episode.turns) for episode in rollout.run(specs)))

    seconds = interleaved({"play": play}, options.rounds)["play"]
    pace = [turns / spent for turns, spent in zip(played[1:], seconds, strict=True)]
    line = Line(
        what="rollout alone, Kuhn, scripted, one core",
        ours=statistics.median(pace),
        unit="turns/s",
        target=TARGET,
    )
    show([line], options.json)


if __name__ == "__main__":
    main()
