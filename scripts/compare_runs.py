"""Draws runs over one another: held-out accuracy and valid proposals by step.

Usage: python scripts/compare_runs.py RUN [RUN ...] --out docs/figures/collapse.svg
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from selfplay.errors import RunError
from selfplay.run.record_reader import read_metrics

Row = dict[str, float]


PANELS: dict[str, Callable[[Row], float | None]] = {
    "held-out accuracy, sampled": lambda row: row.get("evaluation/held_out_sampled/accuracy"),
    "valid proposals, in training": lambda row: row.get("role/proposer/valid"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    matplotlib.rcParams.update({"svg.hashsalt": "selfplay", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(6.7, 2.8), layout="constrained")
    for axes, (title, value) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for run in options.runs:
            recorded = read_metrics(run / "metrics.jsonl")
            rows = ends(run, [{"step": step, **row} for step, row in recorded.items()])
            points = [(row["step"], found) for row in rows if (found := value(row)) is not None]
            name = json.loads((run / "summary.json").read_text(encoding="utf-8"))["experiment"]
            marker = "o" if len(points) < 30 else ""
            axes.plot(*zip(*points, strict=True), label=name, marker=marker, markersize=3)
        axes.set(title=title, xlabel="step", ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(options.out, metadata={"Date": None})
    print(options.out)


def ends(run: Path, rows: list[Row]) -> list[Row]:
    """The rows with the evaluations before and after training, which the summary holds."""
    path = run / "summary.json"
    if not path.is_file():
        raise RunError(f"{run} has no summary.json: it has not finished")
    summary = json.loads(path.read_text(encoding="utf-8"))
    for when, step in (("before", 0), ("after", summary["steps"])):
        row: Row = {"step": step}
        for name, figures in summary["evaluations"].items():
            row |= {f"evaluation/{name}/{metric}": v for metric, v in figures[when].items()}
        rows.append(row)
    return sorted(rows, key=lambda row: row["step"])


if __name__ == "__main__":
    main()
