"""The run folder: a contract that users script against. A name that exists is never overwritten."""

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError

from selfplay import files
from selfplay.config import compose
from selfplay.errors import RunError
from selfplay.run.untrusted import is_confined
from selfplay.types import Group, Sample, Status, to_json

ROLLED_BACK = "rolled_back"
"""Folder of the run for what it recorded and then went back from."""

EPISODES, FAILED = "episodes", "failed"
"""Folders of the run for the episodes of recorded steps, and for the failed ones of all steps."""

LOCK_ATTEMPTS = 10
"""How often the lock of a run is asked for before somebody else is said to have it."""


class Run:
    """A folder `runs/<name>` with config, metrics, episodes, checkpoints and summary."""

    def __init__(self, folder: Path) -> None:
        """Use `create` for a new run and `open` for one that exists."""
        self.folder = folder
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        """Told of every line of metrics, such as trackers."""

    @classmethod
    def create(cls, folder: Path, config: Mapping[str, Any]) -> "Run":
        """A new run folder with its resolved config; raises RunError if it exists.

        It has its name when it has all that a run begins with: a kill leaves the name free.
        """
        cls.check_new(folder)
        run, partial = cls(folder), folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        with reporting_disk(folder):
            shutil.rmtree(partial, ignore_errors=True)  # of a killed process of this number
            files.sweep(folder.parent, ".*.[0-9]*.partial")
            try:
                for name in (EPISODES, "checkpoints"):
                    (partial / name).mkdir(parents=True)
                with files.held(partial):
                    write_atomic(partial / "config.yaml", compose.to_yaml(config))
                    partial.rename(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                if folder.exists():  # another process was faster
                    cls.check_new(folder)
                raise
            sync(folder.parent)
        run.lock()
        return run

    @staticmethod
    def check_new(folder: Path) -> None:
        """Raise RunError if there is something at `folder`, or if nothing can be made there."""
        with reporting_disk(folder):
            if not folder.exists():
                parent = next(place for place in folder.absolute().parents if place.exists())
                with TemporaryDirectory(dir=parent, prefix=".selfplay-"):
                    return  # so that a long warm start does not end at a folder nobody can write
        if (folder / "config.yaml").is_file():
            raise RunError(
                f"run {folder} exists and is never overwritten; choose another run.name, or go on "
                f"with it: selfplay train resume={folder}"
            )
        raise RunError(f"{folder} exists and is no run folder; choose another run.name")

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Open an existing run folder.

        Raises RunError if `folder` is not a run folder, or holds links that lead out of it: the
        run may be from somebody else. The folder itself may be a link.
        """
        if not (folder / "config.yaml").is_file():
            raise RunError(f"{folder} is no run folder (config.yaml is missing)")
        check_links(folder)
        return cls(folder)

    def lock(self) -> None:
        """Keep other processes from training this run while this one lives; raises RunError."""
        with reporting_disk(self.folder):
            self._lock = (self.folder / ".lock").open("w")
            for left in reversed(range(LOCK_ATTEMPTS)):
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError as error:  # a viewer asks for a moment whether it is held
                    if not left:
                        message = f"run {self.folder} is being trained by another process"
                        raise RunError(message) from error
                    time.sleep(0.02)

    def config(self) -> dict[str, Any]:
        """The resolved config that the run was made with."""
        return compose.load([], name="config", folder=self.folder)

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

        `groups`: the groups of the step. If `whole` is False, only failed episodes are written.
        `evaluated`: the episodes of the step's evaluations. Only failed ones are written.
        Failed episodes are always written to `failed/`, so that no error is lost.
        """
        credited = {id(sample.turn): sample.advantage for sample in samples}
        with reporting_disk(self.folder):
            kept = {EPISODES: groups if whole else (), FAILED: (*groups, *evaluated)}
            for folder, played in kept.items():
                lines = [
                    json.dumps(record_line(group, member, credited))
                    for group in played
                    for member, episode in enumerate(group.episodes)
                    if folder == EPISODES or episode.status is Status.FAILED
                ]
                if lines:
                    (self.folder / folder).mkdir(exist_ok=True)
                    text = "".join(line + "\n" for line in lines)
                    write_atomic(self.folder / folder / f"{step:06d}.jsonl", text)
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")
                file.flush()
                os.fsync(file.fileno())  # a checkpoint never knows more than the metrics
        for listener in self.listeners:
            listener(step, metrics)

    def rewind(self, step: int) -> list[str]:
        """Remove the record after `step`: a resumed run writes it again. -1 removes all of it.

        Returns a line for each fault of metrics.jsonl: lines that cannot be read, steps that are
        missing. Such lines are left out, and all others are kept.
        """
        path = self.folder / "metrics.jsonl"
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
            # They tell of an end that this run has not reached again yet.
            for name in ("summary.json", "report.html"):
                (self.folder / name).unlink(missing_ok=True)
        return notes

    def missing(self, step: int) -> list[int]:
        """Return the steps from 0 to `step` without a line in metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        known = self._lines(step).steps if path.exists() else set()
        return [each for each in range(step + 1) if each not in known]

    def check_complete(self) -> None:
        """Raise RunError if steps are recorded: then the run had checkpoints, which are missing."""
        path = self.folder / "metrics.jsonl"
        last = max(self._lines(0).later, default=0) if path.exists() else 0
        if last:
            raise RunError(
                f"run {self.folder} has a record up to step {last} and no checkpoint to continue "
                "from; put its checkpoints back, or begin a new run with --config-path "
                f"{self.folder} run.name=NEW"
            )

    def set_aside(self, step: int, number: int, why: Mapping[str, Any]) -> None:
        """Copy what was recorded after `step` to `rolled_back/<number>`, whole or not at all.

        The copy has metrics.jsonl, episodes/ and failed/ as they were, and `why.json`. An existing
        copy with this number, as after a kill, is replaced.
        """
        place = self.folder / ROLLED_BACK / str(number)
        partial = place.with_name(f".{number}.partial")
        with reporting_disk(self.folder):
            for old in (partial, place):
                shutil.rmtree(old, ignore_errors=True)
            (partial / EPISODES).mkdir(parents=True)
            write_atomic(partial / "metrics.jsonl", "".join(self._lines(step).left))
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
        text = (self.folder / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
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
            behind = bool(found.left) or recorded > step
            (found.left if behind else found.kept).append(line + "\n")
            (found.later if behind else found.steps).add(recorded)
        if found.damaged and not any(line.strip() for line in lines[found.damaged[-1] :]):
            found.damaged.pop()  # a kill cut the last line short, before its checkpoint
        return found

    def _episodes(self, step: int) -> list[Path]:
        """The records of episodes from behind a step."""
        return [
            path
            for folder in (EPISODES, FAILED)
            for path in sorted((self.folder / folder).glob("*.jsonl"))
            if path.stem.isdigit() and int(path.stem) > step
        ]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        with reporting_disk(self.folder):
            write_atomic(self.folder / "summary.json", json.dumps(summary, indent=2) + "\n")


@dataclass(kw_only=True)
class _Lines:
    """The lines of metrics.jsonl."""

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
    """Write increasing numbers in short form: `3, 6 to 8`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ", ".join(" to ".join(map(str, each)) for each in found)


def check_links(root: Path) -> None:
    """Raise RunError for the first link out of a run folder, or the first pipe or device in it.

    After this check, reading and writing in the folder stays in it. A folder that disappears during
    the walk, because the run is in progress, is not an error.
    """
    waiting = [root]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_symlink():
                    if not is_confined(root, path):
                        raise RunError(
                            f"{path} is a link that leads out of the run; put a copy in its place "
                            "(the whole run folder may be a link)"
                        )
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif not entry.is_file(follow_symlinks=False) and path.exists():
                    raise RunError(f"{path} is not a regular file; remove it")


def record_line(group: Group, member: int, credited: Mapping[int, Any]) -> dict[str, Any]:
    """An episode as a record has it. `credited`: the id() of a turn to its advantage."""
    episode = group.episodes[member]
    return {
        "group": group.id,
        "member": member,
        "episode": to_json(episode),
        "advantages": [credited.get(id(turn)) for turn in episode.turns],
    }


def cache_folder() -> Path:
    """Where what can be made again is kept: $SELFPLAY_CACHE, or the user's cache."""
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
    """Have a file or folder written to the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class reporting_disk:
    """A context that turns a full or read-only disk into one clear line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Raise RunError in place of an OSError."""
        if isinstance(error, OSError | SafetensorError):
            number = getattr(error, "errno", None) or _os_error_number(str(error))
            full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            advice = (
                "what was recorded before is intact: free some space, then resume the run"
                if full
                else "choose a folder that can be written to, or mend this one"
            )
            reason = os.strerror(number) if number else str(error)
            raise RunError(f"cannot write to {self.folder}: {reason}; {advice}") from error


def _os_error_number(text: str) -> int | None:
    """The error number in a message of the safetensors library, which raises no OSError."""
    found = re.search(r"os error (\d+)", text)
    return int(found.group(1)) if found else None
