"""The runs that a viewer shows, and what is going on in them.

What the newest checkpoint of a run keeps beside weights, read without loading any.
"""

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import isfile  # false, and no error, where another user's folder is
from pathlib import Path
from typing import Any, Literal, TypeAlias

from selfplay.errors import RunError
from selfplay.run.records import decode
from selfplay.run.untrusted import open_regular


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


State: TypeAlias = Literal["training", "ended", "stopped", "games"]
"""What a run is doing; or that it is none, but a folder of games that a person played."""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run under the name that its pages have."""

    name: str
    """Part of the address."""
    folder: Path
    """The run folder."""

    @property
    def state(self) -> State:
        """Whether a process trains it now, and if not, whether it came to its end."""
        if not _is_run(self.folder):
            return "games"
        if _locked(self.folder / ".lock"):
            return "training"
        return "ended" if isfile(self.folder / "summary.json") else "stopped"

    @property
    def games(self) -> Path:
        """Where games of a person are, if there are any."""
        return self.folder / "games" if _is_run(self.folder) else self.folder

    @property
    def stamp(self) -> str:
        """Changes whenever there is something new to be seen of its metrics."""
        parts: list[str] = [self.state]
        for name in ("metrics.jsonl", "summary.json") if parts != ["games"] else (".",):
            try:
                found = (self.folder / name).stat()
                parts.append(f"{found.st_size}-{found.st_mtime_ns}")
            except OSError:
                parts.append("none")
        return ".".join(parts)


class RunCatalogue:
    """Run folders, folders of them, and folders of games.

    They are looked into again whenever they are asked for.
    """

    def __init__(self, places: Sequence[Path], *, later: Sequence[Path] = ()) -> None:
        """`later` are places that need not be there yet. Raises RunError for any other that is no
        folder of either kind."""
        for place in places:
            if not place.is_dir():
                raise RunError(f"{place} is no folder; name a run, or a folder of runs")
            if place != Path("runs") and not _is_one(place) and not _runs_in(place):
                if not os.access(place, os.R_OK | os.X_OK):
                    raise RunError(f"{place}: cannot be read (Permission denied)")
                raise RunError(f"{place} is no run folder and has none in it (no config.yaml)")
        self.places = (*places, *later)

    def runs(self) -> list[ListedRun]:
        """All runs, the newest first; of equal names the later ones get a number, and keep it."""
        found: dict[Path, None] = {}
        for place in self.places:
            for folder in [place] if _is_one(place) else _runs_in(place):
                found[folder.resolve()] = None
        shown, taken = [], set[str]()
        for folder in sorted(found, key=lambda each: (_made(each), each)):
            # A folder's name may be bytes that are no text, and an address is text.
            plain = os.fsencode(folder.name).decode(errors="backslashreplace")
            name, count = plain, 2
            while name in taken:
                name, count = f"{plain}~{count}", count + 1
            taken.add(name)
            shown.append(ListedRun(name=name, folder=folder))
        return shown[::-1]

    def run(self, name: str) -> ListedRun:
        """The run of a name; raises RunError if there is none."""
        for shown in self.runs():
            if shown.name == name:
                return shown
        raise RunError(f"no run {name!r} here")


def _is_run(folder: Path) -> bool:
    return isfile(folder / "config.yaml")


def _is_one(folder: Path) -> bool:
    """Whether it is a run, or holds games of a person."""
    try:
        return _is_run(folder) or any(folder.glob("[!.]*.jsonl"))
    except OSError:
        return False


def _runs_in(folder: Path) -> list[Path]:
    """Runs directly in a folder, and those of sweeps in it."""
    runs: list[Path] = []
    for place in _folders_in(folder):
        if _is_run(place):
            runs.append(place)
        elif isfile(place / "sweep.json"):
            runs += [run for run in _folders_in(place) if _is_run(run)]
    return runs


def _folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, without hidden ones; none in one that may not be looked into."""
    try:
        found = [each for each in os.scandir(folder) if each.is_dir() and each.name[0] != "."]
        return sorted(Path(each.path) for each in found)
    except OSError:
        return []


def _made(folder: Path) -> float:
    try:
        return (folder / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


def _locked(path: Path) -> bool:
    """Whether a process holds the run's lock. Asks for a shared one and lets go of it at once."""
    try:
        with open_regular(path, root=path.parent) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, RunError):
        return False
    return False
