"""Times rollouts with a tool that sleeps, compared with the same conversations without tools.

Each agent makes a call and answers, or answers twice in one conversation. Both have the same number
of completions and the same texts between them, so prompts have equal lengths. Episodes leave their
places while they wait, or keep them (rollout.max_waiting=0). One engine takes the same time for a
step with any number of rows, as a GPU does as long as rows are few. The other is the embedded
engine, which samples every token from a tiny model with random weights; only the text of a
completion is replaced by a call or an answer.

Usage: python scripts/bench_tools.py [--episodes 256] [--rounds 5] [--pause 0.05] [--tokens 48]
           [--engines steady embedded] [--json FILE]
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import torch
from bench_timing import Line, arguments, interleaved, show

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.engines.transformers import TransformersEngine
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.models.tool_use import ToolUse
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.tools import Tool, Toolbox
from selfplay.types import Action, Completion, Observation, Request, StopReason, Task

LIVE = 64
TARGET = 0.9
STEP = 0.02
ENGINES = ("steady", "embedded")
ANSWER = "here are the results"
RESULT = f"<tool_response>\n{ANSWER}\n</tool_response>"


class Questions(Arena):
    """One agent answers `rounds` questions."""

    name = "questions_v0"
    roles = {"solver": 1}

    def setup(self, task: Task, rng: Random) -> None:
        self.left = int(task.payload["rounds"])

    def acting(self) -> Sequence[str]:
        return ["solver_0"]

    def view(self, agent: str) -> Observation:
        later = self.left < self.task.payload["rounds"]
        return Observation(text=RESULT if later else f"{self.seed}: a question")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.left -= 1
        if not self.left:
            self.finish()


class Sleeping(Tool):
    """A tool that sleeps, like one that waits for another machine."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def call(self, text: str) -> str:  # type: ignore[override]
        time.sleep(self.pause)
        return ANSWER


class Calling(TransformersEngine):
    """An engine that replaces the first completion of a move by a call, and others by an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, bool] = {}

    def add(self, request: Request) -> None:
        self._first[request.id] = "tool_results" not in request.observation.fields
        super().add(request)

    def step(self) -> list[Completion]:
        return [
            replace(each, text=completion_text(self._first.pop(each.id))) for each in super().step()
        ]


class Steady(Engine):
    """An engine that answers after 1 to 6 steps. A step takes 20 ms for any number of rows."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}
        self._asked: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        self._asked[request.id], self._left[request.id] = request, 1 + request.seed % 6

    def step(self) -> list[Completion]:
        time.sleep(STEP)
        self._left = {number: left - 1 for number, left in self._left.items()}
        done = [number for number, left in self._left.items() if not left]
        return [self._completion(self._asked.pop(number)) for number in done]

    def _completion(self, request: Request) -> Completion:
        del self._left[request.id]
        tokens = 16 * (1 + request.seed % 6)
        return Completion(
            id=request.id,
            completion_ids=(1,) * tokens,
            logprobs=(0.0,) * tokens,
            stop_reason=StopReason.STOP,
            text=completion_text("tool_results" not in request.observation.fields),
        )


def completion_text(first: bool) -> str:
    return "<sleeping>x</sleeping>" if first else "done"


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    renderer = ChatRenderer(build_tokenizer(["solver"]), where="bench")
    model = build_model(len(renderer.tokenizer), seed=0).eval()
    toolbox = Toolbox(tools={"sleeping": Sleeping(options.pause)})
    described = ToolUse(toolbox, renderer).prompt([], first=True)[0]["content"]
    places = ("leaving", "keeping", "without")
    names = [f"{engine} {place}" for engine in options.engines for place in places]
    rates: dict[str, list[float]] = {name: [] for name in names}

    def play(name: str) -> None:
        tools = None if name.endswith("without") else toolbox
        engine: Engine = Steady()
        if name.startswith("embedded"):
            engine = Calling()
            engine.serve("base", model, renderer.end_ids)
        agent_spec = AgentSpec(
            role=Role(memory="conversation", tools=tools, system="" if tools else described),
            policy="base",
            renderer=renderer,
            max_tokens=options.tokens,
        )
        rollout = Rollout(
            arena=Questions,
            agent_specs={"solver": agent_spec},
            engines={"base": engine},
            settings=RolloutSettings(
                max_live=LIVE, max_waiting=LIVE if name.endswith("leaving") else 0
            ),
        )
        task = Task(id="t", payload={"rounds": 1 if tools else 2})
        specs = [EpisodeSpec(task=task, seed=seed) for seed in range(options.episodes)]
        begin = time.perf_counter()
        episodes = rollout.run(specs)
        seconds = time.perf_counter() - begin
        turns = [turn for episode in episodes for turn in episode.turns]
        assert len(turns) == 2 * options.episodes
        rates[name].append(sum(len(turn.completion_ids) for turn in turns) / seconds)

    interleaved({name: partial(play, name) for name in rates}, options.rounds)
    lines = []
    for name in names:
        kind, _, place = name.partition(" ")
        if place == "without":
            continue
        own, other = (sorted(rates[each][1:]) for each in (name, f"{kind} without"))
        pairs = zip(rates[name][1:], rates[f"{kind} without"][1:], strict=True)
        ratios = sorted(mine / theirs for mine, theirs in pairs)
        lines.append(
            Line(
                what=f"tool of {options.pause * 1000:g} ms, {kind} engine, {place} places",
                ours=own[len(own) // 2],
                other=other[len(other) // 2],
                unit="tokens/s",
                ratio=ratios[len(ratios) // 2],
                low=ratios[0],
                high=ratios[-1],
                target=TARGET if place == "leaving" else None,
            )
        )
    show(lines, options.json)


if __name__ == "__main__":
    main()
