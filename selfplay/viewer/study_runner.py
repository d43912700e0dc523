"""Studies that are measured again from the pages, each in a process of its own.

The viewer itself executes no code of a run. The process is the command `selfplay study` that the
page shows, without `--trust`: the run's config can name only code that such a command admits.
"""

import atexit
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO

from selfplay.errors import RunError
from selfplay.run.module_path import module_path
from selfplay.run.run_folder import STUDIES
from selfplay.run.untrusted import is_confined
from selfplay.viewer.catalog import ListedRun

REFUSED = ("--trust", "--out", "--json", "--set", "--text")
"""Options that a study from a page cannot have: they write, allow code, change the config or read a
file."""
WITH_SLASH = ("--only", "--metric", "--derive", "--equal")
"""Options whose values are names of metrics; the value of another one with a slash is a path."""
FAREWELL = 10.0
"""Seconds after which a stopped study is killed."""
NICENESS = 5
"""Niceness of a study above that of the viewer."""
MOST_WORDS = 100
"""Largest number of words of a command."""


def repeated(run: ListedRun, measure: str, command: str) -> list[str]:
    """Return the arguments after `selfplay` that measure a study of this run again.

    Args:
        run: The run whose page it is.
        measure: Name of the study's file.
        command: The command that the file names. The file may come from another person, so the run
            of the command is replaced by `run`.
    Raises:
        RunError: If the command needs other runs, or is no command of this study.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    several = "this study has several players; measure it on the terminal"
    if words[:3] == ["selfplay", "study", "compare"]:  # its file is `compare-MEASURE`
        raise RunError(several)
    if len(words) > MOST_WORDS or words[:3] != ["selfplay", "study", measure] or len(words) < 4:
        raise RunError(
            "the file does not name the command that made it; measure it on the terminal"
        )
    if any(not word.startswith("-") for word in words[4:5]):
        raise RunError(several)
    before = ""
    for word in words[4:]:
        if word.startswith(REFUSED):
            raise RunError(f"this study has the option {word[:20]}; measure it on the terminal")
        value = not word.startswith("-")
        path = "/" in word and before not in WITH_SLASH
        if value and (path or "=" in before or not before.startswith("-")):
            raise RunError("this study reads other files; measure it on the terminal")
        before = word
    step = re.search(r"@(\d+|start)$", words[3])
    return ["study", measure, f"{_path(run.folder)}{step[0] if step else ''}", *words[4:]]


def _lower_priority() -> int:
    """Return the niceness of a study, so that the viewer and a training come before it."""
    return min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)


def _path(folder: Path) -> str:
    """Return the path of a folder as an argument that is no option; relative if it can be."""
    whole, here = folder.resolve(), Path.cwd().resolve()
    return f"./{whole.relative_to(here)}" if whole.is_relative_to(here) else str(whole)


@dataclass(kw_only=True)
class _Running:
    """A study that is being measured."""

    run: Path
    measure: str
    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]
    """Standard error of the process."""


class StudyRunner:
    """Measures one study at a time. A page begins and stops it; `close` ends it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now: _Running | None = None
        self._failed: dict[tuple[Path, str], str] = {}

    def begin(self, run: ListedRun, measure: str, command: str) -> None:
        """Begin to measure a study again.

        Raises RunError if another study is being measured, or as `repeated` does.
        """
        arguments = repeated(run, measure, command)
        if not is_confined(run.folder, run.folder / STUDIES):
            raise RunError(
                "studies/ is a link that leads out of the run; put a folder in its place"
            )
        with self._lock:
            self._settle()
            if self._now is not None:
                raise RunError(
                    f"{self._now.measure} of {self._now.run.name} is being measured; wait for it, "
                    "or stop it"
                )
            errors = TemporaryFile()  # noqa: SIM115, `_settle` closes it
            # -P: modules of the current folder are not imported.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "selfplay", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": module_path()},
                start_new_session=True,
            )
            # Not in a `preexec_fn`: it runs Python after the fork, where a lock that another thread
            # of the viewer held is never released.
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _lower_priority())
            atexit.register(self.close)
            self._failed.pop((run.folder, measure), None)
            self._now = _Running(run=run.folder, measure=measure, process=process, errors=errors)

    def is_running(self, run: ListedRun, measure: str) -> bool:
        """Return True if a page is measuring this study."""
        with self._lock:
            self._settle()
            now = self._now
            return now is not None and (now.run, now.measure) == (run.folder, measure)

    def problem(self, run: ListedRun, measure: str) -> str:
        """Return why the latest attempt failed, in one line; empty if it did not."""
        with self._lock:
            self._settle()
            return self._failed.get((run.folder, measure), "")

    def stop(self, run: ListedRun, measure: str) -> None:
        """Stop this study, if it is being measured. The earlier result stays."""
        if self.is_running(run, measure):
            self.close()

    def close(self) -> None:
        """Stop the study that is being measured, if there is one."""
        with self._lock:
            if self._now is None:
                return
            process = self._now.process
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(FAREWELL)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._settle()

    def _settle(self) -> None:
        """Note the end of the process."""
        now = self._now
        if now is None or now.process.poll() is None:
            return
        self._now = None
        if now.process.returncode:
            now.errors.seek(0)
            lines = now.errors.read(2**20).decode(errors="replace").strip().splitlines()
            said = lines[-1] if lines else f"it ended with code {now.process.returncode}"
            self._failed[now.run, now.measure] = said[:300]
        now.errors.close()
