"""The pages of a run that have something to show."""

import os
from functools import lru_cache
from pathlib import Path

from selfplay.errors import RunError
from selfplay.run.directory import FAILED
from selfplay.run.run_folder import CHECKPOINTS, EPISODES, METRICS, STATE, checkpoints_in
from selfplay.run.untrusted import open_regular
from selfplay.viewer.catalog import ListedRun, newest_state
from selfplay.viewer.stored_studies import has_studies
from selfplay.viewer.task_pages import tasks_of

LONGEST_LINE = 2**20
"""Number of bytes of a record that are read."""
RATING = b'"league/rating/'
"""Beginning of the name of a rating in `metrics.jsonl`."""


def tabs_of(run: ListedRun) -> list[str]:
    """Return the names of the pages of a run that have something to show, such as "episodes", in
    the order in which the page of the run links to them."""
    recorded, state = _holds(run.folder / EPISODES), _in_state(run.folder)
    shown = {
        "episodes": recorded,
        "groups": recorded,
        "language": recorded,
        "behaviour": recorded and _lists_moves(run.folder),
        "games": _holds(run.games),
        "tasks": "tasks" in state,
        "league": "league" in state or _rates_players(run.folder),
        "studies": has_studies(run.folder),
        "failed": _holds(run.folder / FAILED),
    }
    return [name for name, has in shown.items() if has]


def _holds(folder: Path) -> bool:
    """Return True if a folder has a file of records."""
    try:
        with os.scandir(folder) as entries:
            return any(each.name.endswith(".jsonl") for each in entries)
    except OSError:
        return False


def _lists_moves(run: Path) -> bool:
    """Return True if the first recorded episode of the newest step lists legal moves."""
    try:
        newest = max(path for path in (run / EPISODES).glob("*.jsonl"))
        with open_regular(newest, root=run) as file:
            return b'"legal":["' in file.readline(LONGEST_LINE)
    except (OSError, RunError, ValueError):
        return False


def _rates_players(run: Path) -> bool:
    """Return True if the newest steps on record have ratings of a league."""
    try:
        with open_regular(run / METRICS, root=run) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_LINE))
            return RATING in file.read(LONGEST_LINE)
    except (OSError, RunError):
        return False


def _in_state(run: Path) -> frozenset[str]:
    """Return which of "tasks" and "league" the newest checkpoint stores."""
    try:
        places = checkpoints_in(run / CHECKPOINTS)
        found = (places[0] / STATE).stat() if places else None
    except OSError:
        return frozenset()
    return frozenset() if found is None else _stored(run, str(places[0]), found.st_mtime_ns)


@lru_cache(maxsize=256)
def _stored(run: Path, checkpoint: str, changed: int) -> frozenset[str]:
    """Read a state, which may be large; the name and the time of the checkpoint identify it."""
    shown = set()
    try:
        league = newest_state(run).get("league")
        if isinstance(league, dict) and league.get("ratings"):
            shown.add("league")
        tasks_of(run)
        shown.add("tasks")
    except RunError:
        pass
    return frozenset(shown)
