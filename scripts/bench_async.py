"""Times a run that samples steps ahead of its learner, compared with one that alternates.

The environment is Kuhn poker with a pause in each of its steps. The pause makes the games of a step
take as long as the rest of the step; then the possible gain is largest (a ratio of 2). One Ray
worker plays, and this process learns. The benchmark needs two idle cores. On a busy machine,
--elsewhere adds a pause of some seconds to learning, as if learning used another device.

Usage: python scripts/bench_async.py [--steps 12] [--rounds 3] [--lag 1] [--elsewhere 0]
           [--json FILE] [key=value ...]
"""

import io
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from bench_timing import arguments, compared, show
from rich.console import Console

from arenas.games.kuhn import Illegal, Kuhn
from selfplay.config import compose
from selfplay.experiment.experiment import Experiment
from selfplay.learner.learner import Learner
from selfplay.run.directory import Run
from selfplay.run.progress import Progress
from selfplay.run.record_reader import read_metrics
from selfplay.train import Trainer
from selfplay.types import Action, Sample

THREADS = 8
BASE = (
    "+experiment=tiny/kuhn",
    "evaluations=none",
    "collapse=none",
    "objective.correction=truncated",
    "sampler.group_size=40",
    "learner.mini_batches=32",  # so that learning costs several times what sampling does
    "warmstart.steps=100",
    "run.checkpoint_every=1000",
    f"rollout.threads={THREADS}",
    "runtime=ray",
    "runtime.workers=1",
    "runtime.worker_cpus=0.5",
)
APART = 3
"""Steps at either end that are not counted: the first ones load models, and in the last ones no
further step is sampled ahead."""


class Slow(Kuhn):
    """Kuhn poker whose steps sleep."""

    blocking = True

    def __init__(self, *, seconds: float, illegal: Illegal = "forfeit") -> None:
        super().__init__(illegal=illegal)
        self.seconds = seconds

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        time.sleep(self.seconds)
        super().advance(actions)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=12, help="counted steps of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--elsewhere", type=float, default=0.0)
    options, overrides = parser.parse_known_args()
    learn_longer(options.elsewhere)
    ray.init("local", include_dashboard=False, log_to_driver=False)
    steps = options.steps
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        probe = steps_of(place / "probe", overrides, steps=steps, lag=0, pause=0.0)
        total, rollout, turns = (
            statistics.median(line[name] for line in probe)
            for name in ("seconds/total", "seconds/rollout", "turns")
        )
        rest = total - rollout
        pause = max(0.0, rest - rollout) * THREADS / turns
        print(
            f"{turns:.0f} moves without a slow environment take {rollout:.2f} s, the rest of a "
            f"step {rest:.2f} s: each step of it sleeps {1000 * pause:.1f} ms, {THREADS} at once"
        )
        seconds: dict[int, list[float]] = {0: [], options.lag: []}
        for number in range(options.rounds):
            for lag in sorted(seconds, reverse=bool(number % 2)):
                found = steps_of(place / f"{number}-{lag}", overrides, steps, lag, pause)
                total = sum(line["seconds/total"] for line in found)
                episodes = sum(line["episodes/count"] for line in found)
                seconds[lag].append(total / episodes)
                played, learned, aged = (
                    statistics.median(line.get(name, line[other]) for line in found)
                    for name, other in (
                        ("seconds/sampling", "seconds/rollout"),
                        ("seconds/learn", "seconds/learn"),
                        ("policy/base/staleness_mean", "policy/base/staleness_mean"),
                    )
                )
                print(
                    f"max_staleness {lag}: {episodes / total:.0f} episodes/s; a step plays for "
                    f"{played:.2f} s and learns for {learned:.2f} s; samples {aged:.2f} updates old"
                )
    what = f"an episode in a slow environment, max_staleness {options.lag} compared with 0"
    show([compared(what, seconds[options.lag], seconds[0], target=1.6)], options.json)


def steps_of(
    place: Path, overrides: Sequence[str], steps: int, lag: int, pause: float
) -> list[dict[str, float]]:
    """Return the metrics of the steps that count, with the moves of each."""
    settings: dict[str, Any] = compose.load(
        [*BASE, f"run.steps={steps + 2 * APART}", f"runtime.max_staleness={lag}", *overrides]
    )
    settings["arena"] |= {"_target_": "bench_async.Slow", "seconds": pause}
    experiment = Experiment(settings).load()
    try:
        run = Run.create(place, settings)
        with Progress(steps, "bench", Console(file=io.StringIO()), live=False) as progress:
            Trainer(experiment, run, progress).run()
    finally:
        experiment.close()
    lines = read_metrics(place / "metrics.jsonl")
    return [
        {**lines[step], "turns": lines[step]["policy/base/samples"]}
        for step in range(APART + 1, APART + steps + 1)
    ]


def learn_longer(seconds: float) -> None:
    """Add a pause to every update of a learner."""
    update = Learner.update

    def slower(self: Learner, samples: Sequence[Sample], *, step: int) -> dict[str, float]:
        time.sleep(seconds)
        return update(self, samples, step=step)

    Learner.update = slower  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    main()
