"""Runs all benchmarks, each in a process of its own, and prints one table.

Usage: python scripts/bench_table.py [--json FILE] [NAME ...] [key=value ...]

NAME is one of step, batch, packing, generation, adapters, executor, rollout, tools, waiting,
records, weights, workers, fill, checkpoint, busy; without any, all of these run. async, overlap,
games, ranks and worker_start run only if they are named. Overrides go to the quickstart's config.
The exit code is 1 if a target was missed or a benchmark failed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from bench_timing import Line, arguments, load
from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).resolve().parent
NAMES = (
    *("batch", "packing", "generation", "adapters", "rollout", "tools", "waiting", "records"),
    *("weights", "workers", "executor", "fill", "checkpoint", "step", "busy"),
)
LONGER = ("async", "overlap", "games", "ranks", "worker_start")
"""Benchmarks that run only if they are named; each takes some minutes."""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("names", nargs="*", help=f"some of {', '.join((*NAMES, *LONGER))}")
    options = parser.parse_args()
    overrides = [word for word in options.names if "=" in word]
    names = [word for word in options.names if "=" not in word] or list(NAMES)
    for name in names:
        if name not in (*NAMES, *LONGER):
            known = ", ".join((*NAMES, *LONGER))
            parser.error(f"no benchmark {name!r}; choose from {known}")
    path = options.json or Path("runs/bench.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    before, began = load(), time.perf_counter()
    lines: list[Line] = []
    failed = []
    for name in names:
        print(f"measuring: {name}", file=sys.stderr)
        found = measured(name, overrides if name == "step" else [])
        lines += found or []
        if found is None:
            failed.append(name)
    seconds = time.perf_counter() - began
    report = {
        "machine": {"before": before, "after": load()},
        "torch": version("torch"),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "seconds": round(seconds),
        "failed": failed,
        "lines": [{**vars(line), "reached": line.reached} for line in lines],
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    show(lines)
    print(f"{before} before, {load()} after; {seconds:.0f} s; saved as {path}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    sys.exit(bool(failed) or any(line.reached is False for line in lines))


def measured(name: str, overrides: list[str]) -> list[Line] | None:
    """Return the lines of one benchmark; None if it failed, after its error message."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.json"
        script = str(FOLDER / f"bench_{name}.py")
        ran = subprocess.run(
            [sys.executable, script, "--json", str(path), *overrides], stdout=sys.stderr
        )
        if ran.returncode or not path.is_file():
            return None
        return [Line(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def show(lines: list[Line]) -> None:
    """Print one table of all lines."""
    table = Table(title="ours and the other way, in turns in one run; ratio = other / ours")
    table.add_column("what")
    for column in ("ours", "other", "ratio", "range", "target"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        ratio = spread = other = target = ""
        if line.ratio is not None and line.other is not None:
            other = f"{line.other:.3g} {line.unit}"
            ratio, spread = f"{line.ratio:.2f}", f"{line.low:.2f} to {line.high:.2f}"
        if line.target is not None:
            target = f"{line.target:g} " + ("yes" if line.reached else "NO")
        ours = f"{line.ours:,.0f}" if line.ours >= 100 else f"{line.ours:.3g}"
        table.add_row(line.what, f"{ours} {line.unit}", other, ratio, spread, target)
    console = Console()
    console = console if console.is_terminal else Console(width=132)
    console.print(table)


if __name__ == "__main__":
    main()
