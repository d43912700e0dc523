"""What the newest checkpoint of a run keeps beside weights, read without loading any."""

import json
from pathlib import Path
from typing import Any

from selfplay.errors import RunError


def newest_state(run: Path) -> dict[str, Any]:
    """The state as plain data; raises RunError where there is no checkpoint or it is damaged."""
    places = sorted(p for p in (run / "checkpoints").glob("*") if p.name.isdigit())
    if not places:
        raise RunError(f"{run.name} has no checkpoint yet")
    path = places[-1] / "state.json"
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from error
    return state
