"""What a run folder tells of its watch: when which rule fired, and what was gone back from."""

import json
from collections.abc import Mapping
from pathlib import Path

from selfplay.confined import open_regular
from selfplay.errors import RunError
from selfplay.runs import ROLLED_BACK

PREFIX = "collapse/"


def alarms(run: Path, rows: Mapping[int, Mapping[str, float]]) -> list[str]:
    """A line for every stretch of steps at which a rule fired, and for every return.

    `rows` is step to metrics. Raises RunError for a record that cannot be read.
    """
    return [*_stretches(rows), *_returns(run / ROLLED_BACK)]


def _stretches(rows: Mapping[int, Mapping[str, float]]) -> list[str]:
    names = sorted({key for row in rows.values() for key in row if key.startswith(PREFIX)})
    found = []
    for name in names:
        if name == f"{PREFIX}returned":
            continue
        stretch: list[int] = []
        for step in [*sorted(rows), None]:
            if step is not None and rows[step].get(name):
                stretch.append(step)
            elif stretch:
                until = f" to {stretch[-1]}" if len(stretch) > 1 else ""
                found.append(f"{name.removeprefix(PREFIX)} fired at step {stretch[0]}{until}")
                stretch = []
    return found


def _returns(folder: Path) -> list[str]:
    found = []
    for place in sorted(folder.glob("[0-9]*"), key=lambda each: each.name.zfill(9)):
        try:
            with open_regular(place / "why.json", root=folder.parent) as file:
                why = json.loads(file.read())
            reasons = "; ".join(map(str, why["alarms"]))
            found.append(f"went back from step {why['from']} to {why['to']}: {reasons}")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{place / 'why.json'}: cannot be read ({error!r})") from error
    return found
