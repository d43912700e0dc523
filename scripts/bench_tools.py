"""Times the rollout with a tool that sleeps, beside the same conversations without tools.

Each agent makes a call and answers, or answers twice in one conversation: the same numbers of
completions. The embedded engine samples every token from a tiny model with random weights; only
the text of a completion is replaced by a call or an answer.

Usage: python scripts/bench_tools.py [--episodes 256] [--rounds 5] [--pause 0.05] [--json FILE]
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import torch
from bench_timing import Line, arguments, interleaved, show

from selfplay.arena import Arena
from selfplay.engines.transformers import TransformersEngine
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.tools import Tool, Toolbox
from selfplay.types import Action, Completion, Observation, Request, Task

LIVE = 64
TARGET = 0.9


class Questions(Arena):
    """One agent answers `rounds` questions."""

    name = "questions_v0"
    roles = {"solver": 1}

    def setup(self, task: Task, rng: Random) -> None:
        self.left = int(task.payload["rounds"])

    def acting(self) -> Sequence[str]:
        return ["solver_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text=f"{self.seed}: {self.left} questions are left")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.left -= 1
        if not self.left:
            self.finish()


class Sleeping(Tool):
    """Sleeps, as a tool that asks another machine does."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def call(self, text: str) -> str:  # type: ignore[override]
        time.sleep(self.pause)
        return "here are the results"


class Calling(TransformersEngine):
    """Replaces the text of a move's first completion by a call and that of others by an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, bool] = {}

    def add(self, request: Request) -> None:
        self._first[request.id] = "tool_results" not in request.observation.fields
        super().add(request)

    def step(self) -> list[Completion]:
        return [
            replace(each, text="<sleeping>x</sleeping>" if self._first.pop(each.id) else "done")
            for each in super().step()
        ]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    torch.set_num_threads(1)
    renderer = ChatRenderer(build_tokenizer(["solver"]), where="bench")
    model = build_model(len(renderer.tokenizer), seed=0).eval()
    toolbox = Toolbox(tools={"sleeping": Sleeping(options.pause)})
    rates: dict[str, list[float]] = {"with": [], "without": []}

    def play(name: str) -> None:
        tools = toolbox if name == "with" else None
        engine = Calling()
        engine.serve("base", model, renderer.end_ids)
        seat = AgentSpec(
            role=Role(memory="conversation", tools=tools),
            policy="base",
            renderer=renderer,
            max_tokens=options.tokens,
        )
        rollout = Rollout(
            arena=Questions, seats={"solver": seat}, engines={"base": engine}, max_live=LIVE
        )
        task = Task(id="t", payload={"rounds": 1 if tools else 2})
        jobs = [EpisodeSpec(task=task, seed=seed) for seed in range(options.episodes)]
        begin = time.perf_counter()
        episodes = rollout.run(jobs)
        seconds = time.perf_counter() - begin
        turns = [turn for episode in episodes for turn in episode.turns]
        assert len(turns) == 2 * options.episodes
        rates[name].append(sum(len(turn.completion_ids) for turn in turns) / seconds)

    interleaved({name: (lambda name=name: play(name)) for name in rates}, options.rounds)
    own, other = (sorted(rates[name][1:]) for name in ("with", "without"))
    ratios = sorted(a / b for a, b in zip(rates["with"][1:], rates["without"][1:], strict=True))
    line = Line(
        what=f"tokens with a tool of {options.pause * 1000:g} ms, {LIVE} live, beside without",
        ours=own[len(own) // 2],
        other=other[len(other) // 2],
        unit="tokens/s",
        ratio=ratios[len(ratios) // 2],
        low=ratios[0],
        high=ratios[-1],
        target=TARGET,
    )
    show([line], options.json)


if __name__ == "__main__":
    main()
