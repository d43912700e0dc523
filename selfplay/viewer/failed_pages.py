"""List of a run's newest failed episodes, with their errors, from the folder `failed/`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from selfplay.errors import RunError
from selfplay.run.directory import FAILED
from selfplay.run.record_reader import DIGITS, decode, record_of
from selfplay.run.untrusted import open_regular

MOST = 200
"""Largest number of failed episodes on the page."""
LONGEST = 1000
"""Largest number of characters shown of an error."""


@dataclass(frozen=True, kw_only=True)
class FailedEpisode:
    """A row of the list."""

    step: int
    """The step that played the episode."""
    place: str
    """File, relative to the run folder, and line."""
    group: str = ""
    """Group of the episode; `evaluation/<name>` for an episode of an evaluation."""
    task: str = ""
    """Type and id of the task."""
    turns: int = 0
    """Number of turns before the failure."""
    error: str = ""
    """Error of the episode, or of its record."""


def newest(run: Path) -> list[FailedEpisode]:
    """Return at most `MOST` failed episodes of a run, the newest step first.

    A damaged line is listed with its error. Raises RunError if the folder cannot be read, or a file
    leads out of the run.
    """
    found: list[FailedEpisode] = []
    for step in _steps(run):
        for failure in _of_step(run, step):
            found.append(failure)
            if len(found) == MOST:
                return found
    return found


def _steps(run: Path) -> list[int]:
    """Return the steps with failed episodes, the newest first."""
    folder = run / FAILED
    try:
        names = [path.stem for path in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise RunError(f"{folder}: cannot be read ({error.strerror})") from error
    known = [name for name in names if name.isascii() and name.isdigit() and len(name) < DIGITS]
    return sorted((int(name) for name in known if f"{int(name):06d}" == name), reverse=True)


def _of_step(run: Path, step: int) -> Iterator[FailedEpisode]:
    path = run / FAILED / f"{step:06d}.jsonl"
    try:
        with open_regular(path, root=run) as lines:
            for count, line in enumerate(lines, 1):
                place = f"{FAILED}/{path.name}, line {count}"
                try:
                    read = record_of(decode(line), step=step, line=count, path=path)
                except (RunError, ValueError) as error:
                    yield FailedEpisode(
                        step=step, place=place, error=f"unreadable: {error}"[:LONGEST]
                    )
                    continue
                task = read.episode.task
                yield FailedEpisode(
                    step=step,
                    place=place,
                    group=read.group,
                    task=f"{task.type} {task.id}",
                    turns=len(read.episode.turns),
                    error=read.episode.error[:LONGEST],
                )
    except FileNotFoundError:  # the run was rolled back in the meantime
        return
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
