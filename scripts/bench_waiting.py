"""Measures generation with arenas that wait for a tool, a judge or a sandbox.

The clock is simulated, so that results do not depend on other work of the machine. A step of the
engine takes 20 ms with any number of rows up to 64, as on a GPU. A move takes 20 to 60 steps, and
then waits for 200 ms in a thread of its arena. The rollout is the real one; only the pool of
threads and the engine are replaced.

Three rollouts of the same games are compared: with arenas that wait during the engine's steps
(ours), with arenas for which the engine pauses (`rollout.overlap=0`), and without waits.

Usage: python scripts/bench_waiting.py [--moves 20] [--json FILE]
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from bench_timing import arguments, compared, show

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.types import Action, Completion, Observation, Request, StopReason, Task

ROWS, STEP, FEWEST, MOST = 64, 0.02, 20, 60
WAIT = 0.2
KEPT = 0.9
"""Target of ours: a fraction of the speed without waits."""


@dataclass
class Clock:
    """The simulated clock."""

    now: float = 0.0
    """Seconds since the beginning."""
    asked: float = 0.0
    """Seconds for which the arena that advances now waits."""


CLOCK = Clock()


@dataclass
class Ended:
    """A call in a thread, and the time at which it ends."""

    at: float

    def result(self) -> None:
        CLOCK.now = max(CLOCK.now, self.at)


class Threads:
    """A pool of threads on the simulated clock."""

    def __init__(self, threads: int, **named: Any) -> None:
        self.free = [0.0] * threads

    def submit(self, call: Callable[[], None]) -> Ended:
        CLOCK.asked = 0.0
        call()
        end = max(CLOCK.now, heapq.heappop(self.free)) + CLOCK.asked
        heapq.heappush(self.free, end)
        return Ended(end)

    def shutdown(self, **named: Any) -> None:
        pass


class Walk(Arena):
    """A game of some moves, each of which waits."""

    name = "walk"
    roles = {"player": 1}
    blocking = True
    moves, wait = 20, WAIT

    def setup(self, task: Task, rng: Random) -> None:
        self.made = 0

    def acting(self) -> tuple[str, ...]:
        return ("player_0",)

    def view(self, agent: str) -> Observation:
        return Observation(text=f"Move {self.made}.")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        CLOCK.asked = self.wait
        self.made += 1
        if self.made == self.moves:
            self.finish()


class Instant(Walk):
    """The same game without waits, and therefore without threads."""

    blocking = False
    wait = 0.0


class SimulatedEngine(Engine):
    """An engine with a limited number of rows, whose steps take the same time at any number."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.running: dict[int, int] = {}

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> list[Completion]:
        while self.waiting and len(self.running) < ROWS:
            request = self.waiting.popleft()
            self.running[request.id] = Random(request.seed).randint(FEWEST, MOST)
        CLOCK.now += STEP
        self.running = {number: left - 1 for number, left in self.running.items()}
        done = [number for number, left in self.running.items() if not left]
        for number in done:
            del self.running[number]
        return [
            Completion(
                id=number,
                completion_ids=(1,),
                logprobs=(0.0,),
                stop_reason=StopReason.STOP,
                text="go",
            )
            for number in done
        ]


def seconds(arena: type[Arena], games: int, **settings: Any) -> float:
    """Return the simulated seconds of a rollout with the default settings, or others."""
    specs = [EpisodeSpec(task=Task(id="walk"), seed=seed) for seed in range(games)]
    agent_spec = AgentSpec(role=Role(), policy="base", renderer=ByteRenderer())
    engines = {"base": SimulatedEngine()}
    CLOCK.now = 0.0
    with patch("selfplay.rollout.arena_threads.ThreadPoolExecutor", Threads):
        Rollout(
            arena=arena,
            agent_specs={"player": agent_spec},
            engines=engines,
            settings=RolloutSettings(**settings),
        ).run(specs)
    return CLOCK.now


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--moves", type=int, default=20)
    options = parser.parse_args()
    Walk.moves = options.moves
    lines = []
    for games, target in ((4 * ROWS, KEPT), (2 * ROWS, KEPT), (ROWS, None)):
        ours = [seconds(Walk, games)]
        what = f"{games} games, {ROWS} rows, arenas wait 200 ms a move, simulated"
        instant, paused = [seconds(Instant, games)], [seconds(Walk, games, overlap=0.0)]
        lines += [
            compared(f"{what}, compared with arenas that do not", ours, instant, target=target),
            compared(f"{what}, compared with an engine that pauses", ours, paused),
        ]
    show(lines, options.json)


if __name__ == "__main__":
    main()
