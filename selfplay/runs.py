"""The run folder: a contract that users script against. A name that exists is never overwritten."""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError

from selfplay import config as configs
from selfplay.errors import RunError
from selfplay.types import Group, Sample, to_json


class Run:
    """A folder `runs/<name>` with config, metrics, episodes, checkpoints and summary."""

    def __init__(self, folder: Path) -> None:
        """Use `create` for a new run and `open` for one that exists."""
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, config: Mapping[str, Any]) -> "Run":
        """A new run folder with its resolved config; raises RunError if it exists."""
        cls.refuse_existing(folder)
        run = cls(folder)
        with reporting_disk(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:  # another process was faster
                cls.refuse_existing(folder)
                raise
            try:
                for name in ("episodes", "checkpoints"):
                    (folder / name).mkdir()
                write_atomic(folder / "config.yaml", configs.to_yaml(config))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
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
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(f"run {self.folder} is being trained by another process") from error

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
            json.dumps(
                {
                    "group": group.id,
                    "member": member,
                    "episode": to_json(episode),
                    "advantages": [credited.get(id(turn)) for turn in episode.turns],
                }
            )
            for group in groups
            for member, episode in enumerate(group.episodes)
        ]
        with reporting_disk(self.folder):
            if lines:
                text = "".join(line + "\n" for line in lines)
                write_atomic(self.folder / "episodes" / f"{step:06d}.jsonl", text)
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")
                file.flush()
                os.fsync(file.fileno())  # a checkpoint never knows more than the metrics

    def rewind(self, step: int) -> None:
        """Forget what was recorded after `step`: a resumed run records it again. -1 forgets all."""
        path = self.folder / "metrics.jsonl"
        with reporting_disk(self.folder):
            if path.exists():
                kept = []
                for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                    try:
                        recorded = json.loads(line)["step"]
                    except (ValueError, KeyError, TypeError):
                        break  # the line that a kill cut short; nothing valid comes behind it
                    if recorded > step:
                        break
                    kept.append(line + "\n")
                write_atomic(path, "".join(kept))
            for episodes in (self.folder / "episodes").glob("*.jsonl"):
                if episodes.stem.isdigit() and int(episodes.stem) > step:
                    episodes.unlink()
            # They tell of an end that this run has not reached again yet.
            for name in ("summary.json", "report.html"):
                (self.folder / name).unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        with reporting_disk(self.folder):
            write_atomic(self.folder / "summary.json", json.dumps(summary, indent=2) + "\n")


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
