"""Measures the cost of an open viewer for a training: the same runs with and without it, in turns.

All processes share one core, so that the training lacks the time that the viewer takes. A client
asks for a page as a browser does: with the tag of its copy, and as often as the server allows. The
main result is the fraction of the core that the viewer takes. Seconds per step show the same effect
with the noise of other work on the machine.

Usage: python scripts/watch_cost.py [--experiment tiny/kuhn] [--steps 300] [--rounds 2]
           [--all-cores] [--json FILE] [key=value ...]
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from selfplay.run.record_reader import read_metrics

TARGET = 0.01
FIRST_LOOK = 5.0
"""Seconds until the first request of an open page; the server gives the later intervals."""
PHASES = ("rollout", "credit", "learn", "record")


@dataclass(frozen=True, kw_only=True)
class Round:
    """One training."""

    seconds_per_step: float
    """Median over steps, of the phases that every step has."""
    cpu_per_step: float
    """CPU seconds of the whole process, divided by the number of its steps."""
    wall: float
    """Wall-clock seconds of the training."""
    viewer_cpu: float = 0.0
    """CPU seconds of the viewer while it was open, its start left out."""
    asked: int = 0
    """Requests of the open pages."""
    made: int = 0
    """Pages among the answers."""
    viewer_megabytes: float = 0.0
    """Memory of the viewer at the end."""

    @property
    def fraction(self) -> float:
        """CPU seconds of the viewer per second that passed."""
        return self.viewer_cpu / self.wall


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--experiment", default="tiny/kuhn")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to save the results")
    parser.add_argument(
        "--all-cores", action="store_true", help="use all cores, for a machine with other work"
    )
    options, overrides = parser.parse_known_args()
    if hasattr(os, "sched_setaffinity") and not options.all_cores:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    found: dict[bool, list[Round]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "selfplay", "train", f"+experiment={options.experiment}"),
            *(f"run.steps={options.steps}", f"run.folder={folder}", "run.threads=1"),
            *("run.episodes_every=1", "run.checkpoint_every=1000000", *overrides),
        ]
        # Files that are kept between runs, such as a warm start, are made before.
        quiet([*command, "run.name=first", "run.steps=1"])
        for number in range(options.rounds):
            for watched in (False, True) if number % 2 else (True, False):
                name = f"{'watched' if watched else 'alone'}-{number}"
                done = round_of([*command, f"run.name={name}"], Path(folder) / name, watched)
                found[watched].append(done)
                print(name, json.dumps(asdict(done)), flush=True)
    fraction = statistics.mean(each.fraction for each in found[True])
    for what in ("seconds_per_step", "cpu_per_step"):
        mine, other = (statistics.median(getattr(e, what) for e in each) for each in found.values())
        print(f"{what:<18} alone {mine:.4f}, watched {other:.4f}: {other / mine:.4f}")
    print(
        f"viewer: {100 * fraction:.2f} % of a core ({'under' if fraction < TARGET else 'OVER'} 1 %)"
    )
    if options.json:
        lines = {
            name: [asdict(each) for each in found[watched]]
            for name, watched in (("alone", False), ("watched", True))
        }
        options.json.write_text(json.dumps({"share": fraction, **lines}, indent=2) + "\n")
    sys.exit(fraction >= TARGET)


def quiet(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def round_of(command: list[str], run: Path, watched: bool) -> Round:
    """Run a training; `watched` while its page and the list of runs are open."""
    used, begun = children(), time.monotonic()
    viewer = Watching(run) if watched else None
    quiet(command)
    wall = time.monotonic() - begun
    cpu = children() - used  # of the processes that have ended: only the training
    rows = [row for step, row in read_metrics(run / "metrics.jsonl").items() if step]
    steps = [sum(row.get(f"seconds/{phase}", 0.0) for phase in PHASES) for row in rows]
    return Round(
        seconds_per_step=statistics.median(steps),
        cpu_per_step=cpu / len(rows),
        wall=wall,
        **(viewer.end() if viewer else {}),
    )


def children() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


class Watching:
    """A viewer with two open pages: of the run, and of all runs."""

    def __init__(self, run: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "selfplay", "watch", str(run.parent), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        (address,) = re.findall(r"http://[\d.:]+/", self.process.stdout.readline())
        self.asked = self.made = 0
        self.over = threading.Event()
        # The first page loads the code that draws, which is part of the start.
        httpx.get(f"{address}run/first", timeout=60).raise_for_status()
        self.start = self.cpu()
        pages = (f"run/{run.name}", "")
        self.tabs = [
            threading.Thread(target=self.leave_open, args=(address + page,)) for page in pages
        ]
        for tab in self.tabs:
            tab.start()

    def leave_open(self, address: str) -> None:
        """Poll the server as the script of the page does."""
        tag, wait = '"none"', FIRST_LOOK
        with httpx.Client(timeout=60) as client:
            while not self.over.wait(wait):
                answer = client.get(address, headers={"If-None-Match": tag})
                self.asked += 1
                wait = float(answer.headers.get("X-Look-Again", wait))
                if answer.status_code == 200:
                    tag = answer.headers["ETag"]
                    self.made += 1

    def cpu(self) -> float:
        """Return the CPU seconds of the viewer so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> dict[str, Any]:
        """Close the viewer; return its cost."""
        cpu = self.cpu() - self.start
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        self.over.set()
        for tab in self.tabs:
            tab.join()
        self.process.terminate()
        self.process.wait(20)
        return {
            "viewer_cpu": cpu,
            "asked": self.asked,
            "made": self.made,
            "viewer_megabytes": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        }


if __name__ == "__main__":
    main()
