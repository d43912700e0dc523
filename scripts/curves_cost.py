"""Measure the CPU time of curves in the viewer: first request, next ones, and a new step.

Usage: python scripts/curves_cost.py [--steps 20000] [--metrics 90]
"""

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from pathlib import Path

from starlette.testclient import TestClient

from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--metrics", type=int, default=90)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "warm", 100, 2)  # loads the code that a first request needs
        run = make(Path(folder) / "long", options.steps, options.metrics)
        made = application(RunCatalogue([Path(folder)]), cache=Path(folder) / "cache")
        with TestClient(made, base_url="http://127.0.0.1") as client:
            cost(client, "warm", "")
            print(f"{run.stat().st_size / 1e6:.0f} MB of metrics.jsonl")
            print(f"first request: {cost(client, 'long', '')[0]:.1f} ms")
            warm = [cost(client, "long", "") for _ in range(REPEATS)]
            print(f"next requests: {median(warm):.1f} ms, {warm[0][2]:,} bytes")
            tag = warm[-1][1]
            same = [cost(client, "long", tag) for _ in range(REPEATS)]
            print(f"nothing new: {median(same):.1f} ms, {same[0][2]} bytes")
            live = []
            for step in range(options.steps + 1, options.steps + 1 + REPEATS):
                with run.open("a") as file:
                    file.write(line(step, options.steps, options.metrics))
                live.append(cost(client, "long", tag))
                tag = live[-1][1]
            print(
                f"one new step: {median(live):.1f} ms, {median(live) / 50:.2f} % of a core at 5 s"
            )


def make(run: Path, steps: int, metrics: int) -> Path:
    """Write a run; return its metrics.jsonl."""
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    path = run / "metrics.jsonl"
    with path.open("w") as file:
        file.writelines(line(step, steps, metrics) for step in range(1, steps + 1))
    return path


def line(step: int, steps: int, metrics: int) -> str:
    """Return a step's line, with noisy values."""
    rng, gain = random.Random(step), 1 - math.exp(-5 * step / steps)
    names = ("role/solver/reward", "role/proposer/reward", "policy/base/loss", "seconds/total")
    row = {"step": step} | {name: gain + rng.gauss(0, 0.1) for name in names}
    row |= {f"arena/type{n}/solve_rate": gain + rng.gauss(0, 0.1) for n in range(metrics)}
    if step % max(1, steps // 100) == 0:
        row["evaluation/held_out/accuracy"] = gain
    return json.dumps(row) + "\n"


def cost(client: TestClient, run: str, tag: str) -> tuple[float, str, int]:
    """Ask for the curves of a run; return milliseconds of CPU, ETag and bytes of the answer."""
    begun = time.process_time()
    answer = client.get(f"/curves.json?run={run}", headers={"If-None-Match": tag} if tag else {})
    spent = 1000 * (time.process_time() - begun)
    assert answer.status_code in (200, 304), answer.text
    return spent, answer.headers["ETag"], len(answer.content)


def median(costs: list[tuple[float, str, int]]) -> float:
    return statistics.median(spent for spent, _, _ in costs)


if __name__ == "__main__":
    main()
