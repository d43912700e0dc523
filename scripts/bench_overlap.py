"""Times steps of games with heavy-tailed lengths, one batch after another and sampled ahead.

A game has a number of moves that is drawn from a Pareto distribution, and every move sleeps, so
that the games need hardly any processor. The learner sleeps too. Policies are scripted; queue,
threads and limit on staleness are those of a run (`PrefetchedBatches` over a `Rollout`). Three ways
play the same games:

- one batch after another (`max_staleness` 0);
- sampled ahead, where each step begins after the games of the step before, as with a curriculum
  that reads outcomes;
- sampled ahead with steps that overlap.

The first three and the last three steps of each way are not counted.

Usage: python scripts/bench_overlap.py [--lag 1] [--steps 24] [--rounds 1] [--games 24]
           [--places 16] [--seconds 0.2] [--learn 0.1] [--json FILE]
"""

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from random import Random

from bench_timing import arguments, compared, load, show

from selfplay.arena import Arena
from selfplay.curriculum.fixed import FixedTasks
from selfplay.engines import Engine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.sampler.independent import Independent
from selfplay.sampler.prefetch import Batches, OnDemandBatches, PrefetchedBatches
from selfplay.types import Action, Completion, Group, Observation, Request, StopReason, Task

ALPHA, MOST = 1.1, 40
"""Shape of the Pareto distribution of a game's moves, and their largest number."""
APART = 3
"""Steps at either end that are not counted."""
TARGET = 1.5
AFTER, AHEAD, OVERLAPPING = "one batch after another", "sampled ahead", "sampled ahead, overlapping"


class HeavyTailed(Arena):
    """A game whose moves sleep, with a heavy-tailed number of moves."""

    name = "heavy_tailed"
    roles = {"player": 1}
    blocking = True
    seconds = 0.0

    def setup(self, task: Task, rng: Random) -> None:
        self.left = min(MOST, int(rng.paretovariate(ALPHA)))

    def acting(self) -> tuple[str, ...]:
        return ("player_0",)

    def view(self, agent: str) -> Observation:
        return Observation(text="Go on.")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        time.sleep(self.seconds)
        self.left -= 1
        if not self.left:
            self.finish()


class ImmediateEngine(Engine):
    """An engine that answers every request in the next step, with the version of that time."""

    def __init__(self) -> None:
        self.version = 0
        self.waiting: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> list[Completion]:
        asked, self.waiting = self.waiting, []
        return [
            Completion(
                id=request.id,
                completion_ids=(1,),
                logprobs=(0.0,),
                stop_reason=StopReason.STOP,
                version=self.version,
                text="go",
            )
            for request in asked
        ]


class OutcomeTasks(FixedTasks):
    """Fixed tasks of a curriculum that may read outcomes."""

    def observe(self, groups: Sequence[Group], step: int) -> None:
        pass


def seconds_per_step(way: str, options: Namespace) -> float:
    """Return the seconds of a step in the steady state. Raises ValueError for a sample that is too
    old."""
    engine, last = ImmediateEngine(), options.steps + 2 * APART
    rollout = Rollout(
        arena=HeavyTailed,
        agent_specs={"player": AgentSpec(role=Role(), policy="base", renderer=ByteRenderer())},
        engines={"base": engine},
        settings=RolloutSettings(max_live=options.places, max_waiting=0, threads=options.places),
    )
    kind = OutcomeTasks if way == AHEAD else FixedTasks
    on_demand = OnDemandBatches(
        curriculum=kind(tasks=[Task(id=str(n)) for n in range(64)], batch=options.games),
        sampler=Independent(),
        rollout_fn=rollout.run,
        seed=lambda: 0,
    )
    batches: Batches = on_demand
    lag = 0 if way == AFTER else options.lag
    if lag:
        batches = PrefetchedBatches(
            on_demand, max_staleness=lag, last=last, keeps=lambda step: False
        )
    ends, oldest, moves = {}, 0, 0
    for step in range(1, last + 1):
        turns = [
            turn
            for group in batches.take(step).groups
            for episode in group.episodes
            for turn in episode.turns
        ]
        age = max(engine.version - turn.version for turn in turns)
        if age > lag:
            raise ValueError(f"step {step}: a sample is {age} updates old, and {lag} are allowed")
        oldest = max(oldest, age)
        moves += len(turns) * (APART < step <= last - APART)
        time.sleep(options.learn)
        engine.version += 1
        batches.learned(step)
        ends[step] = time.monotonic()
    batches.close()
    found = (ends[last - APART] - ends[APART]) / options.steps
    filled = moves * options.seconds / options.steps / options.places / found
    print(
        f"{way}: {found:.2f} s a step, places filled {filled:.0%}, "
        f"samples at most {oldest} update(s) old"
    )
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--lag", type=int, default=1, help="max_staleness")
    parser.add_argument("--steps", type=int, default=24, help="counted steps of each way")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--games", type=int, default=24, help="games of a step")
    parser.add_argument("--places", type=int, default=16, help="games at the same time")
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds that a move sleeps")
    parser.add_argument("--learn", type=float, default=0.1, help="seconds that learning takes")
    options = parser.parse_args()
    HeavyTailed.seconds = options.seconds
    print(load())
    seconds: dict[str, list[float]] = {AFTER: [], AHEAD: [], OVERLAPPING: []}
    for number in range(options.rounds):
        for way in list(seconds)[:: -1 if number % 2 else 1]:
            seconds[way].append(seconds_per_step(way, options))
    what = f"a step of {options.games} games in {options.places} places, lag {options.lag}"
    after = seconds[AFTER]
    lines = [
        compared(f"{what}, steps overlap", seconds[OVERLAPPING], after, target=TARGET),
        compared(f"{what}, steps do not overlap", seconds[AHEAD], after),
    ]
    show(lines, options.json)


if __name__ == "__main__":
    main()
