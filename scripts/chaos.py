"""Kills one process of each of many runs on Ray, and checks the results of the runs.

Every run trains the smoke experiment on workers and learner ranks of a local Ray. One of its
processes gets SIGKILL: a rank, a worker, the driver, or another process (Ray's own, pools of
processes, idle workers), in turns. A rank or a worker is killed at a random moment of training, and
other processes at a random moment of their lives. An undisturbed run gives these times. With
`runtime.colocated=true` ranks and workers are in pairs, and a rank or a worker is one half of a
pair. If the run ends because of the kill, `selfplay train resume=RUN` continues it. The script then
checks that the run has ended, that its metrics have every step once, that every episode that was
learned from is recorded once, and that its last weights are those of an undisturbed run. So no
episode was learned from twice, and none was left out.

Usage: python scripts/chaos.py [--runs 50] [--seed 0] [--victims rank,worker,driver,other]
           [--folder runs/chaos] [--limit 600] [key=value ...]
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

MARK = "SELFPLAY_CHAOS"
"""Environment variable that all processes of a run inherit."""
READABLE = {"SPT_NOENV": "1"}
"""Variable that keeps the mark: without it, the process titles of Ray overwrite the mark."""
KINDS = {"rank": "ray::LearnerWorker", "worker": "ray::RolloutWorker", "driver": "driver"}
"""Beginning of the names of the processes of a kind."""
OTHER = "other"
"""Kind of all other processes."""
RESUMES = 3
"""Maximum number of times that an ended run is resumed."""
CLOSE = 1e-4
"""Largest difference of a weight that other sizes of batches cause in a few steps."""
TICK = 0.1
"""Seconds between two looks at the processes of a run."""
OVERRIDES = (
    *("+experiment=tiny/smoke", "run.steps=8"),
    *("runtime=ray", "runtime.workers=2", "runtime.learners=2"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--victims",
        type=victims,
        default=[*KINDS, OTHER],
        help="kinds of processes to kill in turns, with commas: rank, worker, driver, other",
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/chaos"))
    parser.add_argument("--limit", type=float, default=600, help="seconds until a run hangs")
    options, overrides = parser.parse_known_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    calm = options.folder / "calm"
    shutil.rmtree(calm, ignore_errors=True)
    Path(f"{calm}.log").unlink(missing_ok=True)
    begun, lives = time.monotonic(), Lives(calm)
    code = attempt(calm, command(calm, overrides), options.limit, lives.tick)
    if code is None:
        sys.exit(
            f"the undisturbed run hung for {options.limit:.0f} s; its output is in {calm}.log; "
            "raise --limit"
        )
    if code != 0:
        sys.exit(f"the undisturbed run ended with {code}; its output is in {calm}.log")
    print(f"undisturbed: {time.monotonic() - begun:.0f} s", flush=True)
    if missing := [kind for kind in options.victims if kind not in lives.seconds]:
        sys.exit(
            f"the undisturbed run has no process of the kind {', '.join(missing)}; leave it out "
            "of --victims, or set runtime.workers and runtime.learners"
        )
    rng = random.Random(options.seed)
    killed: Counter[str] = Counter()
    wrong = 0
    for number in range(options.runs):
        run = options.folder / f"{number:03d}"
        kind = options.victims[number % len(options.victims)]
        while True:
            shutil.rmtree(run, ignore_errors=True)
            Path(f"{run}.log").unlink(missing_ok=True)
            kill = Kill(kind, rng.uniform(0.05, 0.95) * lives.seconds[kind], rng, run)
            verdict, resumed = disturb(run, overrides, kill, options.limit)
            if kill.name or verdict:
                break  # otherwise the run ended before the kill
        fault = verdict or compare(run, calm)
        killed[kind] += 1
        wrong += bool(fault)
        after = f"resumed {resumed} x" if resumed else replaced(run)
        print(f"{number:03d} {kill.message:<46} {after:<20} {fault or 'whole'}", flush=True)
        if not fault:
            shutil.rmtree(run)
    print(", ".join(f"{kind} {count}" for kind, count in killed.most_common()))
    print(f"{options.runs - wrong} of {options.runs} runs ended whole")
    sys.exit(1 if wrong else 0)


def victims(words: str) -> list[str]:
    """Return the kinds that an option names."""
    kinds = words.split(",")
    if unknown := [kind for kind in kinds if kind not in (*KINDS, OTHER)]:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)}: choose from {', '.join((*KINDS, OTHER))}"
        )
    return kinds


class Lives:
    """Times during which the processes of each kind can be killed in a run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._first: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        """Seconds from the first look at a process of a kind to the last one."""

    def tick(self, mark: str) -> None:
        """Look at the processes of the run."""
        now = time.monotonic()
        for kind in living(mark, self._run):
            self.seconds[kind] = now - self._first.setdefault(kind, now)


class Kill:
    """A kill of one process of a kind, some seconds after a process of this kind was first seen."""

    def __init__(self, kind: str, delay: float, rng: random.Random, run: Path) -> None:
        self._kind, self._delay, self._rng, self._run = kind, delay, rng, run
        self._began = time.monotonic()
        self._first: float | None = None
        self.name = ""
        """Name of the killed process; empty before the kill."""
        self.message = f"no {kind} in time"
        """Killed process, with the time and the step of the kill."""

    def tick(self, mark: str) -> None:
        """Kill a process of the run if it is time."""
        if self.name:
            return
        now, pids = time.monotonic(), living(mark, self._run).get(self._kind)
        if not pids:
            return
        if self._first is None:
            self._first = now
        if now < self._first + self._delay:
            return
        name = self._rng.choice(sorted(pids))  # names are drawn first, with equal probability
        if end_process(self._rng.choice(pids[name])):
            self.name = name
            path = self._run / "metrics.jsonl"
            done = path.read_bytes().count(b"\n") if path.is_file() else 0
            self.message = f"{name} at {now - self._began:.0f} s"
            self.message += f" in step {done}" if done else " before step 0"


def command(run: Path, overrides: Sequence[str]) -> list[str]:
    place = [f"run.folder={run.parent}", f"run.name={run.name}"]
    return ["train", *OVERRIDES, *place, *overrides]


def disturb(run: Path, overrides: Sequence[str], kill: Kill, limit: float) -> tuple[str, int]:
    """Kill once, and resume until the run has ended; return the fault, and the number of
    resumes."""
    code = attempt(run, command(run, overrides), limit, kill.tick)
    for resumed in range(RESUMES + 1):
        if code is None:
            return f"hung for {limit:.0f} s", resumed
        if code == 0:
            return "", resumed
        began = (run / "config.yaml").is_file()  # False if it was killed before it had a folder
        again = ["train", f"resume={run}"] if began else command(run, overrides)
        code = attempt(run, again, limit)
    return f"ended with {code} after {RESUMES} resumes", RESUMES


def attempt(
    run: Path,
    arguments: Sequence[str],
    limit: float,
    tick: Callable[[str], None] = lambda mark: None,
) -> int | None:
    """Run the command line once, and end all processes that it left.

    `tick` is called often with the mark of the run's processes. Return the exit code, or None if
    the command hung.
    """
    mark = f"{run.name}-{time.time_ns()}"
    with Path(f"{run}.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "selfplay", *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, MARK: mark, **READABLE},
            start_new_session=True,
        )
        end = time.monotonic() + limit
        try:
            while (code := process.poll()) is None and time.monotonic() < end:
                tick(mark)
                time.sleep(TICK)
        finally:
            for pid in marked(mark):
                end_process(pid)
            process.wait()
    return code


def living(mark: str, run: Path) -> dict[str, dict[str, list[int]]]:
    """Return the run's processes by kind and name; ranks and workers only while it trains."""
    found: dict[str, dict[str, list[int]]] = {}
    trains = (run / "metrics.jsonl").is_file() and not (run / "summary.json").is_file()
    for pid in sorted(marked(mark)):
        if not (name := named(pid)):
            continue
        kind = next((kind for kind, begin in KINDS.items() if name.startswith(begin)), OTHER)
        if trains or kind in ("driver", OTHER):
            found.setdefault(kind, {}).setdefault(name, []).append(pid)
    return found


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that inherited the mark."""
    wanted = f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                yield int(place.name)
        except OSError:  # it has ended, or may not be read
            continue


def named(pid: int) -> str:
    """Return a short name of a process; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().split()
    except OSError:
        return ""
    if not words:
        return ""
    line = " ".join(words)
    if "-m selfplay train" in line:
        return "driver"
    if words[0].startswith("ray::"):
        return words[0].partition(".")[0]  # without the method that it runs
    for known in ("raylet", "gcs_server", "zygote", "multiprocessing"):
        if known in line:
            return known
    scripts = [Path(word).name for word in words if word.endswith(".py")]
    return (scripts or [Path(words[0]).name])[0]


def end_process(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def replaced(run: Path) -> str:
    """Return the numbers of replaced workers and sets of ranks, in words."""
    found = lines(run / "metrics.jsonl") if (run / "metrics.jsonl").is_file() else []
    workers = sum(float(str(line.get("runtime/worker_deaths", 0))) for line in found)
    ranks = max((float(str(line.get("runtime/learner_restarts", 0))) for line in found), default=0)
    counts = {"workers": workers, "ranks": ranks}
    return ", ".join(f"replaced {name} {count:.0f} x" for name, count in counts.items() if count)


def compare(run: Path, calm: Path) -> str:
    """Return the parts of the undisturbed run that a run lacks; empty if it lacks nothing."""
    steps = [line["step"] for line in lines(run / "metrics.jsonl")]
    if steps != (expected := [line["step"] for line in lines(calm / "metrics.jsonl")]):
        return f"its metrics have steps {steps}, not {expected}"
    if not (run / "summary.json").is_file():
        return "no summary"
    names = [sorted(path.name for path in (place / "episodes").iterdir()) for place in (run, calm)]
    if names[0] != names[1]:
        return f"its episodes are in {names[0]}, not in {names[1]}"
    for path in sorted((calm / "episodes").iterdir()):
        mine = Counter(key(line) for line in lines(run / "episodes" / path.name))
        theirs = Counter(key(line) for line in lines(path))
        if mine != theirs:
            return f"episodes/{path.name}: {mine - theirs or theirs - mine} too many or missing"
    for line, other in zip(
        lines(run / "metrics.jsonl"), lines(calm / "metrics.jsonl"), strict=True
    ):
        for name, value in other.items():
            if name.endswith("/samples") and line.get(name) != value:
                return f"step {line['step']} learned from {line.get(name)} {name}, not {value}"
    return furthest(run, calm)


def key(line: dict[str, object]) -> str:
    return json.dumps([line["group"], line["member"]])


def furthest(run: Path, calm: Path) -> str:
    """Name a policy whose last weights are not those of the undisturbed run; "" if there is
    none."""
    for path in sorted((newest(calm) / "policies").glob("*/*.safetensors")):
        mine = load_file(newest(run) / "policies" / path.parent.name / path.name)
        if not all(bool(t.isfinite().all()) for t in mine.values() if t.is_floating_point()):
            return f"weights of {path.parent.name} are not finite"
        apart = max(
            float((mine[name] - value).abs().max()) if value.numel() else 0.0
            for name, value in load_file(path).items()
            if torch.is_floating_point(value)
        )
        if apart > CLOSE:
            return f"weights of {path.parent.name} are {apart:.2g} apart"
    return ""


def newest(run: Path) -> Path:
    return max(p for p in (run / "checkpoints").iterdir() if p.name.isdigit())


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
