"""Kills a random process of each of many runs on Ray, and checks the results of the runs.

Every run trains the smoke experiment on workers and learner ranks of a local Ray. At a random
moment one of its processes (driver, workers, ranks, Ray's own, their pools) gets SIGKILL. If the
run ends because of this, `selfplay train resume=RUN` continues it. The script then checks that the
run has ended, that its metrics have every step once, that every episode that was learned from is
recorded once, and that its last weights are those of an undisturbed run. So no episode was learned
from twice, and none was left out.

Usage: python scripts/chaos.py [--runs 50] [--seed 0] [--folder runs/chaos] [--limit 600]
           [key=value ...]
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
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

MARK = "SELFPLAY_CHAOS"
"""Environment variable that all processes of a run inherit."""
READABLE = {"SPT_NOENV": "1"}
"""Variable without which the titles that Ray gives its processes would overwrite the mark."""
NOBODY = "nobody in time"
"""Name in place of a victim if a run ended before the kill."""
RESUMES = 3
"""Maximum number of times that an ended run is resumed."""
CLOSE = 1e-4
"""Largest difference of a weight that other sizes of batches cause in a few steps."""
OVERRIDES = ("+experiment=tiny/smoke", "runtime=ray", "runtime.workers=2", "runtime.learners=2")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/chaos"))
    parser.add_argument("--limit", type=float, default=600, help="seconds until a run hangs")
    options, overrides = parser.parse_known_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    calm = options.folder / "calm"
    shutil.rmtree(calm, ignore_errors=True)
    begun = time.monotonic()
    told = attempt(calm, command(calm, overrides), None, options.limit)
    seconds = time.monotonic() - begun
    if told.code:
        sys.exit(f"the undisturbed run ended with {told.code}; its words are in {calm}.log")
    print(f"undisturbed: {seconds:.0f} s", flush=True)
    rng = random.Random(options.seed)
    killed: Counter[str] = Counter()
    wrong = 0
    for number in range(options.runs):
        run = options.folder / f"{number:03d}"
        victim = NOBODY
        while victim == NOBODY:  # it was faster than the undisturbed one
            shutil.rmtree(run, ignore_errors=True)
            when = rng.uniform(0.05, 0.95) * seconds
            verdict, victim, resumed = disturb(run, overrides, when, rng, options.limit)
        fault = verdict or compare(run, calm)
        killed[victim] += 1
        wrong += bool(fault)
        after = f", resumed {resumed} x" if resumed else ""
        print(f"{number:03d} {when:5.1f} s {victim:<24}{after:<14} {fault or 'whole'}", flush=True)
        if not fault:
            shutil.rmtree(run)
    print(", ".join(f"{name} {count}" for name, count in killed.most_common()))
    if options.runs >= 20 and not any(name.startswith("ray::") for name in killed):
        sys.exit("no actor of Ray was ever found to be killed, so this says nothing of them")
    print(f"{options.runs - wrong} of {options.runs} runs ended whole")
    sys.exit(1 if wrong else 0)


class Told:
    """How a process ended."""

    def __init__(self, code: int | None, victim: str) -> None:
        self.code, self.victim = code, victim


def command(run: Path, overrides: Sequence[str]) -> list[str]:
    place = [f"run.folder={run.parent}", f"run.name={run.name}"]
    return ["train", *OVERRIDES, *place, *overrides]


def disturb(
    run: Path, overrides: Sequence[str], when: float, rng: random.Random, limit: float
) -> tuple[str, str, int]:
    """Kill once and go on until it has ended: what is wrong, who was killed, times resumed."""
    told = attempt(run, command(run, overrides), (when, rng), limit)
    victim = told.victim
    for resumed in range(RESUMES + 1):
        if told.code is None:
            return f"hung for {limit:.0f} s", victim, resumed
        if told.code == 0:
            return "", victim, resumed
        began = (run / "config.yaml").is_file()  # killed before its folder was there
        again = ["train", f"resume={run}"] if began else command(run, overrides)
        told = attempt(run, again, None, limit)
    return f"ended with {told.code} after {RESUMES} resumes", victim, RESUMES


def attempt(
    run: Path, arguments: Sequence[str], kill: tuple[float, random.Random] | None, limit: float
) -> Told:
    """Run the command line once, and end all that it left."""
    mark = f"{run.name}-{time.time_ns()}"
    victim = NOBODY
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
            if kill is not None:
                when, rng = kill
                try:
                    process.wait(timeout=when)
                except subprocess.TimeoutExpired:
                    victim = strike(mark, rng)
            code: int | None = process.wait(timeout=max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            for pid in marked(mark):
                end_process(pid)
            process.wait()
    return Told(code, victim)


def strike(mark: str, rng: random.Random) -> str:
    """Kill one of the run's processes, of a kind drawn first so that none is rare; its name."""
    kinds: dict[str, list[int]] = {}
    for pid in sorted(marked(mark)):
        kinds.setdefault(named(pid), []).append(pid)
    kinds.pop("", None)
    for kind in rng.sample(sorted(kinds), len(kinds)):
        if end_process(rng.choice(kinds[kind])):
            return kind
    return "nobody left"


def marked(mark: str) -> Iterator[int]:
    """The processes that inherited the mark."""
    wanted = f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                yield int(place.name)
        except OSError:  # it has ended, or is not ours to read
            continue


def named(pid: int) -> str:
    """Return the kind of a process in a word or two; empty if it has ended."""
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
        return words[0]
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


def compare(run: Path, calm: Path) -> str:
    """Return the parts of the undisturbed run that a run lacks; empty if it lacks nothing."""
    steps = [line["step"] for line in lines(run / "metrics.jsonl")]
    if steps != (expected := [line["step"] for line in lines(calm / "metrics.jsonl")]):
        return f"its metrics have steps {steps}, not {expected}"
    if not (run / "summary.json").is_file():
        return "no summary"
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
    """Which policy's last weights are not those of the undisturbed run."""
    for path in sorted((newest(calm) / "policies").glob("*/*.safetensors")):
        mine = load_file(newest(run) / "policies" / path.parent.name / path.name)
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
