"""The run folder. Its layout is a public interface, and an existing run is never overwritten."""

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from safetensors import SafetensorError

from selfplay.config import compose
from selfplay.credit.assigned import by_turn
from selfplay.errors import RunError
from selfplay.run import files
from selfplay.run.json_lines import JsonLines
from selfplay.run.run_folder import (
    CHECKPOINTS,
    CONFIG,
    EPISODES,
    METRICS,
    REPORT,
    SUMMARY,
    check_run,
    checkpoints_in,
    step_of,
)
from selfplay.run.untrusted import is_confined
from selfplay.types import Group, Sample, Status

ROLLED_BACK = "rolled_back"
"""Folder of the run for the records of steps that a rollback discarded."""

FAILED = "failed"
"""Folder of the run for the failed episodes of all steps."""

LOCK_ATTEMPTS = 10
"""Number of attempts to take the lock of a run before another process counts as its owner."""


class Run:
    """A folder `runs/<name>` with config, metrics, episodes, checkpoints and summary.

    Training creates or opens it and writes each step; resuming, reports and the viewer read it.
    """

    def __init__(self, folder: Path) -> None:
        """Use `create` for a new run and `open` for one that exists."""
        self.folder = folder
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        """Functions called with (step, metrics) after each step is written, such as trackers."""
        self._new_parents: list[Path] = []
        self._lock: TextIO | None = None

    @classmethod
    def create(cls, folder: Path, config: Mapping[str, Any]) -> "Run":
        """Create a run folder with its resolved config; raise RunError if it exists.

        The folder gets its name after its first files are written: a kill leaves the name free.
        """
        cls.check_new(folder)
        run = cls(folder)
        run._new_parents = [path for path in folder.absolute().parents if not path.exists()]
        with reporting_disk(folder):
            try:
                with files.appearing(folder) as partial:
                    for name in (EPISODES, CHECKPOINTS):
                        (partial / name).mkdir()
                    write_atomic(partial / CONFIG, compose.to_yaml(config))
            except BaseException:
                if folder.exists():  # another process was faster
                    cls.check_new(folder)
                raise
            sync(folder.parent)
        run.lock()
        return run

    def discard(self) -> None:
        """Remove a new run folder in which nothing is recorded yet, and the parents made for it."""
        if not (self.folder / METRICS).exists():
            with reporting_disk(self.folder):
                shutil.rmtree(self.folder)
            with suppress(OSError):  # another run may be in them
                for parent in self._new_parents:
                    parent.rmdir()

    @staticmethod
    def check_new(folder: Path) -> None:
        """Raise RunError if `folder` exists, or if it cannot be created."""
        with reporting_disk(folder):
            if not folder.exists():
                parent = next(path for path in folder.absolute().parents if path.exists())
                with TemporaryDirectory(dir=parent, prefix=".selfplay-"):
                    return  # writable: a long warm start does not end at a read-only folder
        if (folder / CONFIG).is_file():
            raise RunError(
                f"run {folder} exists and is never overwritten; choose another run.name, or go on "
                f"with it: selfplay train resume={folder}"
            )
        raise RunError(f"{folder} exists and is not a run folder; choose another run.name")

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open an existing run folder.

        Raises RunError if `folder` is not a run folder, or holds links that lead out of it,
        because another person may have made it. The folder itself may be a link.
        """
        check_run(folder)
        check_links(folder)
        return cls(folder)

    def unlock(self) -> None:
        """End the lock, so that this process or another one can continue the run."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def lock(self) -> None:
        """Lock the run for training until `unlock` or the end of this process.

        Raises RunError if another process trains the run.
        """
        with reporting_disk(self.folder):
            self._lock = (self.folder / ".lock").open("w")
            for left in reversed(range(LOCK_ATTEMPTS)):
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError as error:  # a viewer takes the lock for a moment to test it
                    if not left:
                        message = f"run {self.folder} is being trained by another process"
                        raise RunError(message) from error
                    time.sleep(0.02)

    def newest_checkpoint(self) -> int | None:
        """Return the step of the newest checkpoint, without reading it; None if there is none."""
        return next(map(step_of, checkpoints_in(self.folder / CHECKPOINTS)), None)

    def config(self) -> dict[str, Any]:
        """Return the resolved config of the run, with the changes of its resumes."""
        return compose.load([], name="config", folder=self.folder)

    def change_config(self, config: Mapping[str, Any]) -> None:
        """Replace the resolved config; its file keeps the time at which the run was created."""
        path = self.folder / CONFIG
        with reporting_disk(self.folder):
            made = path.stat().st_mtime_ns
            write_atomic(path, compose.to_yaml(config))
            os.utime(path, ns=(made, made))

    def record(
        self,
        step: int,
        metrics: Mapping[str, float],
        groups: Sequence[Group],
        samples: Sequence[Sample],
        *,
        whole: bool = True,
        evaluated: Sequence[Group] = (),
    ) -> None:
        """Write a step's episodes, then its line of metrics.

        Failed episodes are always written to `failed/`, so that no error is lost. Raises RunError
        if the disk refuses a file.

        Args:
            step: Number of the step.
            metrics: Metrics of the step.
            groups: Groups of the step.
            samples: Samples that the step learned from, with the advantages of their turns.
            whole: False writes only the failed episodes of `groups`.
            evaluated: Groups of the step's evaluations; only their failed episodes are written.
        """
        credited = by_turn(samples, groups)
        written = JsonLines()
        with reporting_disk(self.folder):
            kept = {EPISODES: groups if whole else (), FAILED: (*groups, *evaluated)}
            for folder, played in kept.items():
                lines = [
                    written.line(record(group, member, credited))
                    for group in played
                    for member, episode in enumerate(group.episodes)
                    if folder == EPISODES or episode.status is Status.FAILED
                ]
                if lines:
                    (self.folder / folder).mkdir(exist_ok=True)
                    text = "".join(line + "\n" for line in lines)
                    write_atomic(self.folder / folder / f"{step:06d}.jsonl", text)
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")
                file.flush()
                os.fsync(file.fileno())  # a checkpoint is never newer than the metrics
        for listener in self.listeners:
            listener(step, metrics)

    def rewind(self, step: int) -> list[str]:
        """Remove the record after `step`, which a resumed run writes again; -1 removes all of it.

        Returns a line for each fault of metrics.jsonl: lines that cannot be read, and steps that
        are missing. Lines that cannot be read are removed too; the other lines up to `step` stay.
        """
        path = self.folder / METRICS
        notes: list[str] = []
        with reporting_disk(self.folder):
            if path.exists():
                found = self._lines(step)
                write_atomic(path, "".join(found.kept))
                if found.damaged:
                    lines = f"line{'s' * (len(found.damaged) > 1)} {spans(found.damaged)}"
                    notes.append(f"{path}: {lines} cannot be read; left out")
            if lost := self.missing(step):
                steps = f"step{'s' * (len(lost) > 1)} {spans(lost)}"
                notes.append(f"{path}: {steps} missing; the run goes on, with a gap in its record")
            for episodes in self._episodes(step):
                episodes.unlink()
            # These files describe the finished run, and are stale after a rewind.
            for name in (SUMMARY, REPORT):
                (self.folder / name).unlink(missing_ok=True)
        return notes

    def missing(self, step: int) -> list[int]:
        """Return the steps from 0 to `step`, the step of a checkpoint, that have no line in
        metrics.jsonl."""
        path = self.folder / METRICS
        known = self._lines(step).steps if path.exists() else set()
        return [number for number in range(step + 1) if number not in known]

    def repeated(self, step: int) -> list[int]:
        """Return the recorded steps after `step`, the step of a checkpoint; a resume repeats
        them."""
        path = self.folder / METRICS
        return sorted(self._lines(step).later) if path.exists() else []

    def check_complete(self) -> None:
        """Raise RunError if steps are recorded: the run then had checkpoints, which are missing."""
        last = max(self.repeated(0), default=0)
        if last:
            raise RunError(
                f"run {self.folder} has a record up to step {last} and no checkpoint to continue "
                "from; put its checkpoints back, or begin a new run with --config-path "
                f"{self.folder} run.name=NEW"
            )

    def set_aside(self, step: int, number: int, why: Mapping[str, Any]) -> None:
        """Copy the record after `step` to `rolled_back/<number>`, completely or not at all.

        The copy has metrics.jsonl, episodes/ and failed/ unchanged, and `why` as `why.json`. An
        existing copy with this number, such as one left by a kill, is replaced.
        """
        place = self.folder / ROLLED_BACK / str(number)
        partial = place.with_name(f".{number}.partial")
        with reporting_disk(self.folder):
            for old in (partial, place):
                shutil.rmtree(old, ignore_errors=True)
            (partial / EPISODES).mkdir(parents=True)
            write_atomic(partial / METRICS, "".join(self._lines(step).left))
            for episodes in self._episodes(step):
                (partial / episodes.parent.name).mkdir(exist_ok=True)
                shutil.copy2(episodes, partial / episodes.parent.name / episodes.name)
            write_atomic(partial / "why.json", json.dumps(dict(why), indent=2) + "\n")
            for path in (*partial.rglob("*"), partial):
                sync(path)
            partial.rename(place)

    def _lines(self, step: int) -> "_Lines":
        """Sort the lines of metrics.jsonl into those up to a step and those after it."""
        found = _Lines()
        text = (self.folder / METRICS).read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                recorded = json.loads(line)["step"]
                if not isinstance(recorded, int) or isinstance(recorded, bool):
                    raise TypeError
            except (ValueError, KeyError, TypeError, RecursionError):
                found.damaged.append(number)
                continue
            later = bool(found.left) or recorded > step
            (found.left if later else found.kept).append(line + "\n")
            (found.later if later else found.steps).add(recorded)
        if found.damaged and not any(line.strip() for line in lines[found.damaged[-1] :]):
            found.damaged.pop()  # a kill cut the last line, before the step's checkpoint
        return found

    def _episodes(self, step: int) -> list[Path]:
        """Return the files with episodes of the steps after `step`."""
        return [
            path
            for folder in (EPISODES, FAILED)
            for path in sorted((self.folder / folder).glob("*.jsonl"))
            if path.stem.isdecimal() and int(path.stem) > step
        ]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, which marks the run as finished."""
        with reporting_disk(self.folder):
            write_atomic(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")


@dataclass(kw_only=True)
class _Lines:
    """The lines of metrics.jsonl up to a step and after it."""

    kept: list[str] = field(default_factory=list)
    """Lines up to a given step."""
    left: list[str] = field(default_factory=list)
    """Lines after that step."""
    steps: set[int] = field(default_factory=set)
    """The steps of `kept`."""
    later: set[int] = field(default_factory=set)
    """The steps of `left`."""
    damaged: list[int] = field(default_factory=list)
    """Numbers of the lines that are not records, from 1."""


def spans(numbers: Sequence[int]) -> str:
    """Format increasing numbers in short form: `3, 6 to 8`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ", ".join(" to ".join(map(str, each)) for each in found)


def gaps(known: Iterable[int]) -> str:
    """Format the numbers from 0 that are missing below the largest known one, as `spans` does."""
    found, expected = list[str](), 0
    for number in sorted(known):
        if number > expected:
            last = number - 1
            found.append(f"{expected}" if last == expected else f"{expected} to {last}")
        expected = max(expected, number + 1)
    return ", ".join(found)


def check_links(root: Path, *, kind: str = "run") -> None:
    """Raise RunError for the first link out of a run folder, or the first pipe or device in it.

    The error calls `root` the folder of a `kind`. After this check, reading and writing in the
    folder stays in it. A folder that disappears during the walk, because the run is in progress, is
    not an error.
    """
    waiting = [root]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_symlink():
                    if not is_confined(root, path):
                        raise RunError(
                            f"{path} is a link that leads out of the {kind}; put a copy in its "
                            f"place (the whole {kind} folder may be a link)"
                        )
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif not entry.is_file(follow_symlinks=False) and path.exists():
                    raise RunError(f"{path} is not a regular file; remove it")


def record(group: Group, member: int, credited: Mapping[int, Any]) -> dict[str, Any]:
    """Return the content of an episode's line. `credited`: advantage by the id() of its turn."""
    episode = group.episodes[member]
    return {
        "group": group.id,
        "member": member,
        "episode": episode,
        "advantages": [credited.get(id(turn)) for turn in episode.turns],
    }


def cache_folder() -> Path:
    """Return the folder of the cache: $SELFPLAY_CACHE, or a folder in the user's cache."""
    home = os.environ.get("SELFPLAY_CACHE")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selfplay"


def write_atomic(path: Path, text: str) -> None:
    """Write a file completely or leave it unchanged; follow no link."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class reporting_disk:
    """A context that converts an OSError, such as a full disk, to a RunError of one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Raise RunError in place of an OSError, with what to do."""
        if isinstance(error, OSError | SafetensorError):
            number = getattr(error, "errno", None) or _os_error_number(str(error))
            full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            cached = is_confined(cache_folder(), self.folder)
            if full and cached:
                advice = "free some space or set SELFPLAY_CACHE, then type the same command"
            elif full:
                advice = "earlier records are intact; free some space, then resume the run"
            else:
                advice = "choose a writable folder, or repair this one"
            reason = os.strerror(number) if number else str(error)
            raise RunError(f"cannot write to {self.folder}: {reason}; {advice}") from error


def _os_error_number(text: str) -> int | None:
    """Return the error number in a message of safetensors, which raises no OSError; else None."""
    found = re.search(r"os error (\d+)", text)
    return int(found.group(1)) if found else None
