"""The run folder: a contract that users script against. A name that exists is never overwritten."""

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError

from selfplay import config as configs
from selfplay.errors import RunError
from selfplay.types import Group, Sample, to_json

ROLLED_BACK = "rolled_back"
"""Folder of the run for what it recorded and then went back from."""

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
        cls.refuse_existing(folder)
        run, partial = cls(folder), folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        with reporting_disk(folder):
            shutil.rmtree(partial, ignore_errors=True)  # of a killed process of this number
            try:
                for name in ("episodes", "checkpoints"):
                    (partial / name).mkdir(parents=True)
                write_atomic(partial / "config.yaml", configs.to_yaml(config))
                partial.rename(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                if folder.exists():  # another process was faster
                    cls.refuse_existing(folder)
                raise
            sync(folder.parent)
        run.lock()
        return run

    @staticmethod
    def refuse_existing(folder: Path) -> None:
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
        """A run folder that exists; raises RunError if it is none."""
        if not (folder / "config.yaml").is_file():
            raise RunError(f"{folder} is no run folder (config.yaml is missing)")
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
        return configs.load([], name="config", folder=self.folder)

    def record(
        self,
        step: int,
        metrics: Mapping[str, float],
        groups: Sequence[Group],
        samples: Sequence[Sample],
    ) -> None:
        """Write a step's episodes, then its line of metrics."""
        credited = {id(sample.turn): sample.advantage for sample in samples}
        lines = [
            json.dumps(record_line(group, member, credited))
            for group in groups
            for member in range(len(group.episodes))
        ]
        with reporting_disk(self.folder):
            if lines:
                text = "".join(line + "\n" for line in lines)
                write_atomic(self.folder / "episodes" / f"{step:06d}.jsonl", text)
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")
                file.flush()
                os.fsync(file.fileno())  # a checkpoint never knows more than the metrics
        for listener in self.listeners:
            listener(step, metrics)

    def rewind(self, step: int) -> None:
        """Forget what was recorded after `step`: a resumed run records it again. -1 forgets all."""
        path = self.folder / "metrics.jsonl"
        with reporting_disk(self.folder):
            if path.exists():
                kept, _ = self._lines(step)
                write_atomic(path, "".join(kept))
            for episodes in self._episodes(step):
                episodes.unlink()
            # They tell of an end that this run has not reached again yet.
            for name in ("summary.json", "report.html"):
                (self.folder / name).unlink(missing_ok=True)

    def set_aside(self, step: int, number: int, why: Mapping[str, Any]) -> None:
        """Copy what was recorded after `step` to `rolled_back/<number>`, whole or not at all.

        The folder has metrics.jsonl and episodes/ as they were, and `why.json`. Of a number that is
        there already, as after a kill, the copy is made anew.
        """
        place = self.folder / ROLLED_BACK / str(number)
        partial = place.with_name(f".{number}.partial")
        with reporting_disk(self.folder):
            for old in (partial, place):
                shutil.rmtree(old, ignore_errors=True)
            (partial / "episodes").mkdir(parents=True)
            _, left = self._lines(step)
            write_atomic(partial / "metrics.jsonl", "".join(left))
            for episodes in self._episodes(step):
                shutil.copy2(episodes, partial / "episodes" / episodes.name)
            write_atomic(partial / "why.json", json.dumps(dict(why), indent=2) + "\n")
            for path in (*partial.rglob("*"), partial):
                sync(path)
            partial.rename(place)

    def _lines(self, step: int) -> tuple[list[str], list[str]]:
        """The lines of metrics.jsonl up to a step, and the whole ones behind it."""
        kept: list[str] = []
        left: list[str] = []
        text = (self.folder / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            try:
                recorded = json.loads(line)["step"]
            except (ValueError, KeyError, TypeError):
                break  # the line that a kill cut short; nothing valid comes behind it
            (left if left or recorded > step else kept).append(line + "\n")
        return kept, left

    def _episodes(self, step: int) -> list[Path]:
        """The records of episodes from behind a step."""
        found = (self.folder / "episodes").glob("*.jsonl")
        return sorted(path for path in found if path.stem.isdigit() and int(path.stem) > step)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        with reporting_disk(self.folder):
            write_atomic(self.folder / "summary.json", json.dumps(summary, indent=2) + "\n")


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
    """Write a file so that it is either whole or as it was before."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
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
