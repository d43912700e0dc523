"""Measures the effective training time of a run on Ray that loses a process every ten steps.

The run plays Kuhn poker in an environment that sleeps, so that its steps are as long as those of
larger models and hardly depend on other work of the machine. It has two workers, two ranks and a
checkpoint after every step. After every tenth step, at a random moment of the next one, one process
gets SIGKILL: a worker, a rank, the driver, or Ray's raylet, in turns. If the run ends because of
this, `selfplay train resume=RUN` continues it.

The effective training time is the time that the steps take in an undisturbed run, divided by the
time from the first step to the last one with kills, which has loading, lost work and repetitions.

Usage: python scripts/effective_time.py [--steps 40] [--pause 0.1] [--seed 0]
           [--folder runs/effective] [--limit 3600] [--json FILE] [key=value ...]
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chaos import MARK, READABLE, end_process, lines, marked, named

EVERY = 10
"""Steps between two kills."""
FIRST = 5
"""Step after which the first process is killed."""
VICTIMS = ("ray::RolloutWorker", "ray::LearnerWorker", "driver", "raylet")
"""Beginnings of the names of the processes that are killed, in turns."""
WANTED = 0.8
"""Target of the effective training time."""
TICK = 0.2
GAME = ("+experiment=tiny/kuhn", "evaluations=none", "collapse=none", "run.threads=1")
OVERRIDES = (
    *(*GAME, "warmstart=none", "policy.model={model}", "rollout.threads=4"),
    *("sampler.group_size=16", "run.checkpoint_every=1", "run.keep_checkpoints=3"),
    *("arena._target_=bench_async.Slow", "+arena.seconds={pause}"),
    *("runtime=ray", "runtime.workers=2", "runtime.learners=2"),
    *("runtime.worker_cpus=0.5", "runtime.learner_cpus=0.5"),
)


class Watched:
    """A run that is trained by one process after another until it has ended."""

    def __init__(self, run: Path, overrides: Sequence[str], limit: float) -> None:
        self.run, self.overrides, self.limit = run, overrides, limit
        self.starts = 0

    def train(self, tick: Callable[[str], None]) -> float:
        """Train the run to its end; return the seconds. `tick` is called often with the mark."""
        began = time.monotonic()
        while time.monotonic() < began + self.limit:
            if self._once(tick, began + self.limit) == 0:
                return time.monotonic() - began
        sys.exit(f"{self.run} did not end in {self.limit:.0f} s; its output is in {self.run}.log")

    def _once(self, tick: Callable[[str], None], end: float) -> int | None:
        known = (self.run / "config.yaml").is_file()
        again = ("train", f"resume={self.run}", "--trust=bench_async")
        place = (f"run.folder={self.run.parent}", f"run.name={self.run.name}")
        arguments = again if known else ("train", *place, *self.overrides)
        mark = f"{self.run.name}-{time.time_ns()}"
        scripts = str(Path(__file__).resolve().parent)
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), scripts)))
        self.starts += 1
        with Path(f"{self.run}.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "selfplay", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: mark, **READABLE, "PYTHONPATH": paths},
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() < end:
                    tick(mark)
                    time.sleep(TICK)
            finally:
                for pid in marked(mark):
                    end_process(pid)
                process.wait()
        return process.returncode

    def recorded(self) -> list[dict[str, object]]:
        """Return the lines of the metrics so far."""
        path = self.run / "metrics.jsonl"
        return lines(path) if path.is_file() else []

    def step(self) -> int:
        """Return the last recorded step."""
        try:
            return max((int(str(line["step"])) for line in self.recorded()), default=-1)
        except ValueError:  # a line is being written
            return -1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of a move")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/effective"))
    parser.add_argument("--limit", type=float, default=3600, help="seconds of one run")
    parser.add_argument("--json", type=Path)
    options, more = parser.parse_known_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # A warm start in the slow environment would take long.
    made = fresh(options.folder / "model", [*GAME, "warmstart.steps=100", "run.steps=1"], 3600)
    made.train(lambda mark: None)
    model = made.run / "checkpoints/000001/policies/base"
    overrides = [each.format(pause=options.pause, model=model) for each in OVERRIDES]
    overrides += [f"run.steps={options.steps}", *more]
    calm = fresh(options.folder / "calm", overrides, options.limit)
    seconds = calm.train(lambda mark: None)
    steps = [float(str(line["seconds/total"])) for line in calm.recorded() if line["step"]]
    begin = seconds - sum(steps)
    print(
        f"undisturbed: {len(steps)} steps of {statistics.median(steps):.1f} s, and {begin:.0f} s "
        "before and after them",
        flush=True,
    )
    hurt = fresh(options.folder / "hurt", overrides, options.limit)
    killed = Killer(hurt, options.steps, random.Random(options.seed), statistics.median(steps))
    hurt_seconds = hurt.train(killed.tick) - begin
    done = [line["step"] for line in hurt.recorded()]
    if done != list(range(options.steps + 1)):
        sys.exit(f"the metrics have steps {done}")
    effective = sum(steps) / hurt_seconds
    lost = (hurt_seconds - sum(steps)) / max(len(killed.names), 1)
    print(f"started {hurt.starts} times")
    for name, cost in zip(killed.names, killed.costs, strict=False):
        print(f"{name}: {cost:.0f} s until the end of that step, more than without a kill")
    print(
        f"effective training time {effective:.2f} (wanted: {WANTED}): {sum(steps):.0f} of "
        f"{hurt_seconds:.0f} s; a kill costs {lost:.0f} s"
    )
    if options.json:
        found = {"effective": effective, "step": statistics.median(steps), "lost": lost}
        options.json.write_text(json.dumps(found), encoding="utf-8")


class Killer:
    """The kills of a run: one process after every tenth step."""

    def __init__(self, run: Watched, steps: int, rng: random.Random, step: float) -> None:
        self._run, self._rng, self._step = run, rng, step
        self._due = list(range(FIRST, steps - 1, EVERY))
        self._when: float | None = None
        self._seen = (-1, 0.0)
        """Last recorded step, and the time at which it was first seen."""
        self._hurt: int | None = None
        """Step in which a process was killed and that is not recorded yet."""
        self.names: list[str] = []
        """Names of the killed processes."""
        self.costs: list[float] = []
        """Seconds by which the steps with a kill were longer than others."""

    def tick(self, mark: str) -> None:
        """Kill a process of the run if one is due."""
        step, now = self._run.step(), time.monotonic()
        if step > self._seen[0]:
            if self._hurt is not None and step >= self._hurt:
                steps = step - self._hurt + 1
                self.costs.append(now - self._seen[1] - steps * self._step)
                self._hurt = None
            self._seen = (step, now)
        if not self._due or step < self._due[0]:
            return
        if self._when is None:
            self._when = now + self._rng.uniform(0.0, self._step)
        if now < self._when:
            return
        wanted = VICTIMS[len(self.names) % len(VICTIMS)]
        found = [pid for pid in sorted(marked(mark)) if named(pid).startswith(wanted)]
        if found and end_process(self._rng.choice(found)):
            self._hurt = self._due.pop(0) + 1
            self.names.append(f"{wanted} at step {self._hurt}")
            self._when = None


def fresh(run: Path, overrides: Sequence[str], limit: float) -> Watched:
    """Return a run that has not begun."""
    shutil.rmtree(run, ignore_errors=True)
    return Watched(run.resolve(), overrides, limit)


if __name__ == "__main__":
    main()
