"""The runs that a viewer shows, with the state of each run and of its newest checkpoint."""

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import isfile  # returns False for an unreadable folder, without an error
from pathlib import Path
from typing import Any, Literal, TypeAlias

from selfplay.errors import RunError
from selfplay.run import sessions, sweep, tags
from selfplay.run.record_reader import decode
from selfplay.run.run_folder import CHECKPOINTS, CONFIG, METRICS, STATE, SUMMARY, checkpoints_in
from selfplay.run.untrusted import is_confined, open_regular


def newest_state(run: Path) -> dict[str, Any]:
    """Read the state in the newest checkpoint, without weights, as plain data.

    Raises RunError if there is no checkpoint or its state is damaged.
    """
    places = checkpoints_in(run / CHECKPOINTS)
    if not places:
        raise RunError(f"{run.name} has no checkpoint yet")
    path = places[0] / STATE
    try:
        with open_regular(path, root=run) as file:
            state = decode(file.read())
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({str(error)[:200]})") from error
    if not isinstance(state, dict):
        raise RunError(f"{path}: is damaged (expected a JSON object)")
    return state


State: TypeAlias = Literal["training", "ended", "stopped", "games"]
"""State of a run; "games" stands for a folder of games played by a person."""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run and its name on the pages."""

    name: str
    """The run's name, which is part of the pages' addresses."""
    folder: Path
    """The run folder."""

    @property
    def state(self) -> State:
        """State of the run: a process trains it, it ended, or it stopped before its end."""
        if not _is_run(self.folder):
            return "games"
        if _locked(self.folder / ".lock"):
            return "training"
        return "ended" if isfile(self.folder / SUMMARY) else "stopped"

    @property
    def games(self) -> Path:
        """Folder of the games played by a person; it may not exist."""
        return self.folder / "games" if _is_run(self.folder) else self.folder

    @property
    def stamp(self) -> str:
        """Text that changes whenever the state, the metrics or the tags of the run change."""
        parts: list[str] = [self.state]
        files = (METRICS, SUMMARY, tags.FILE, sessions.FILE)
        for name in files if parts != ["games"] else (".",):
            try:
                found = (self.folder / name).stat()
                parts.append(f"{found.st_size}-{found.st_mtime_ns}")
            except OSError:
                parts.append("none")
        return ".".join(parts)


class RunCatalogue:
    """Run folders, folders of run folders, and folders of games.

    The folders are scanned again at each request.
    """

    def __init__(self, places: Sequence[Path], *, later: Sequence[Path] = ()) -> None:
        """Args:
        places: Runs, folders of runs, and folders of games. RunError for any other folder.
        later: More folders, which need not exist yet.
        """
        for place in places:
            if not place.is_dir():
                raise RunError(f"{place} is not a folder; name a run, or a folder of runs")
            if place != Path("runs") and not _is_one(place) and not _runs_in(place):
                if not os.access(place, os.R_OK | os.X_OK):
                    raise RunError(f"{place}: cannot be read (Permission denied)")
                if left_out := [run for each in _sweeps_in(place) for run in _strange_runs(each)]:
                    raise RunError(_line(left_out[0]))
                raise RunError(
                    f"{place} is not a run folder and contains none (no config.yaml); name a run, "
                    "or a folder of runs"
                )
        self.places = (*places, *later)

    def runs(self) -> list[ListedRun]:
        """Return all runs, the newest first.

        If several runs have the same name, the newer ones get a number, which stays the same.
        """
        found: dict[Path, None] = {}
        for place in self.places:
            for folder in [place] if _is_one(place) else _runs_in(place):
                found[folder.resolve()] = None
        shown, taken = [], set[str]()
        for folder in sorted(found, key=lambda each: (_made(each), each)):
            # A folder's name may be bytes that are not valid UTF-8, but an address is text.
            plain = os.fsencode(folder.name).decode(errors="backslashreplace")
            name, count = plain, 2
            while name in taken:
                name, count = f"{plain}~{count}", count + 1
            taken.add(name)
            shown.append(ListedRun(name=name, folder=folder))
        return shown[::-1]

    def left_out(self) -> list[str]:
        """Return a line for each run of a sweep that is not listed, because it is a link that leads
        out of the sweep, which another person may have made."""
        found: dict[Path, None] = {}
        for place in self.places:
            for sweep_folder in _sweeps_in(place):
                found |= dict.fromkeys(_strange_runs(sweep_folder))
        return list(map(_line, found))

    def sweep_of(self, run: ListedRun) -> Path | None:
        """Return the folder of the sweep of a run, if this viewer shows that folder."""
        folder = run.folder.parent
        if not isfile(folder / sweep.FILE):
            return None
        shown = (place.resolve() for place in self.places)
        return folder if any(folder.is_relative_to(place) for place in shown) else None

    def run(self, name: str) -> ListedRun:
        """Return the run with a name; raise RunError if there is none."""
        for shown in self.runs():
            if shown.name == name:
                return shown
        raise RunError(f"no run {name!r} here")


def _is_run(folder: Path) -> bool:
    return isfile(folder / CONFIG)


def _is_one(folder: Path) -> bool:
    """Return True if the folder is a run or holds games played by a person."""
    try:
        return _is_run(folder) or any(folder.glob("[!.]*.jsonl"))
    except OSError:
        return False


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs directly in a folder and in the sweeps of this folder.

    A run of a sweep lies in its folder. A folder of runs may hold links to runs elsewhere.
    """
    if isfile(folder / sweep.FILE):
        return [run for run in _folders_in(folder) if _is_run(run) and is_confined(folder, run)]
    runs = [place for place in _folders_in(folder) if _is_run(place)]
    return runs + [run for place in _sweeps_in(folder) for run in _runs_in(place)]


def _sweeps_in(folder: Path) -> list[Path]:
    """Return the folder if it is a sweep, else the sweeps directly in it."""
    if isfile(folder / sweep.FILE):
        return [folder]
    return [
        place for place in _folders_in(folder) if isfile(place / sweep.FILE) and not _is_run(place)
    ]


def _strange_runs(folder: Path) -> list[Path]:
    """Return the runs of a sweep's folder that are links out of it."""
    return [run for run in _folders_in(folder) if _is_run(run) and not is_confined(folder, run)]


def _line(run: Path) -> str:
    return (
        f"{run} is not listed: it is a link that leads out of the sweep; put a copy in its place "
        "(the whole sweep folder may be a link)"
    )


def _folders_in(folder: Path) -> list[Path]:
    """Return the visible folders in a folder; none if it cannot be read."""
    try:
        found = [each for each in os.scandir(folder) if each.is_dir() and each.name[0] != "."]
        return sorted(Path(each.path) for each in found)
    except OSError:
        return []


def _made(folder: Path) -> float:
    try:
        return (folder / CONFIG).stat().st_mtime
    except OSError:
        return 0.0


def _locked(path: Path) -> bool:
    """Return True if a process holds the run's lock; for this, take a shared lock for a moment."""
    try:
        with open_regular(path, root=path.parent) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, RunError):
        return False
    return False
