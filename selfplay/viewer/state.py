"""What the newest checkpoint of a run keeps beside weights, read without loading any."""

from pathlib import Path
from typing import Any

from selfplay.confined import open_regular
from selfplay.errors import RunError
from selfplay.recorded import decode


def newest_state(run: Path) -> dict[str, Any]:
    """The state as plain data; raises RunError where there is no checkpoint or it is damaged."""
    places = sorted(p for p in (run / "checkpoints").glob("*") if p.name.isdigit())
    if not places:
        raise RunError(f"{run.name} has no checkpoint yet")
    path = places[-1] / "state.json"
    try:
        with open_regular(path, root=run) as file:
            state = decode(file.read())
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({str(error)[:200]})") from error
    if not isinstance(state, dict):
        raise RunError(f"{path}: is damaged (expected a JSON object)")
    return state
