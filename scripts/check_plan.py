"""Measures this machine, trains three local experiments for a few steps, and compares the plan.

It uses one thread; no other program should run. The step that is compared is rollout, credit and
learning.

Usage: python scripts/check_plan.py [--folder runs/plan] [--steps 12]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

EXPERIMENTS = ("tiny/quickstart", "tiny/kuhn", "tiny/signal")
BAND = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/plan"))
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    options.folder.mkdir(parents=True, exist_ok=True)
    measured = options.folder / "machine.yaml"
    if not measured.exists():
        selfplay("plan", "--measure", str(measured))
    for name in EXPERIMENTS:
        if not (options.folder / Path(name).name / "summary.json").is_file():
            selfplay(
                "train",
                f"+experiment={name}",
                f"run.folder={options.folder}",
                f"run.name={Path(name).name}",
                f"run.steps={options.steps}",
                "run.threads=1",
                "run.episodes_every=1",
                "run.checkpoint_every=1000",
            )
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")
    print(f"{'experiment':<12} {'':<8} {'plan':>9} {'measured':>9} {'plan / measured':>16}")
    wrong = []
    for name in EXPERIMENTS:
        for side, mine, theirs in compared(options.folder / Path(name).name, measured):
            print(f"{name:<12} {side:<8} {mine:>7.3f} s {theirs:>7.3f} s {mine / theirs:>16.2f}")
            if side == "step" and abs(mine / theirs - 1) > BAND:
                wrong.append(name)
    print("all within 25 %" if not wrong else f"further than 25 %: {', '.join(wrong)}")
    sys.exit(1 if wrong else 0)


def selfplay(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "selfplay", *arguments], check=True)


def compared(run: Path, cluster: Path) -> list[tuple[str, float, float]]:
    """Return (side, predicted, measured) seconds."""
    from selfplay.cli.plan import plan
    from selfplay.plan.recorded_workload import seconds
    from selfplay.plan.report import sides

    mine = sides(plan([f"cluster={cluster}"], [], folder=run))
    theirs = seconds(run)
    return [(side, mine[side], theirs[side]) for side in mine]


if __name__ == "__main__":
    main()
