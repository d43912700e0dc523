"""The command `selfplay study`. Nothing heavy is loaded before a study begins."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfplay.errors import ConfigError
from selfplay.figures import number, sparkline

if TYPE_CHECKING:
    from selfplay.study.exploitability import Exploitability

MEASURES = ("exploitability",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `selfplay study` takes."""
    parser.add_argument("measure", choices=MEASURES, help="what is measured")
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, metavar="N", help="its checkpoint of step N")
    parser.add_argument("--all", action="store_true", help="every checkpoint that the run kept")
    parser.add_argument("--policy", metavar="NAME", help="seat this policy everywhere")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    if options.all and options.step is not None:
        raise ConfigError("--all measures every checkpoint and --step one of them; drop either")
    from selfplay.study.exploitability import study

    found = study(options.run, step=options.step, every=options.all, policy=options.policy)
    print(json.dumps(as_json(options.run, found), indent=2) if options.json else as_text(found))


def as_json(folder: Path, found: "Sequence[Exploitability]") -> dict[str, Any]:
    """The results, with what they are."""
    return {
        "measure": "exploitability",
        "run": str(folder),
        "direction": "exact",
        "notes": "of the policies given that they move legally; elsewhere is the chance of text "
        "that is no legal move as the tokenizer writes it",
        "results": [each.to_json() for each in found],
    }


def as_text(found: "Sequence[Exploitability]") -> str:
    """A line for each checkpoint; of the last one, its strategy too."""
    last = found[-1]
    lines = [f"{'step':>6}  {'exploitability':>14}  {'NashConv':>9}  {'elsewhere':>9}"]
    lines += [
        f"{each.step:>6}  {_fixed(each.exploitability):>14}  {_fixed(each.nash_conv):>9}"
        f"  {100 * each.elsewhere:>8.2f}%"
        for each in found
    ]
    if len(found) > 1:
        curve = [each.nash_conv for each in found]
        lines.append(f"{'':>6}  {sparkline(curve, 40)}  least {number(min(curve))} (NashConv)")
    values = ", ".join(number(value) for value in last.values)
    lines.append(f"\nstep {last.step}: expected pay {values}; chances of legal moves")
    width = max(len(name) for name in last.strategy)
    for name, chances in sorted(last.strategy.items()):
        shown = "  ".join(f"{action} {chance:.3f}" for action, chance in chances.items())
        lines.append(f"  {name:<{width}}  {shown}")
    return "\n".join(lines)


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
