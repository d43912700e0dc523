"""Sessions of a run: when each process that trained it began, which code it ran, and which error or
interrupt ended it.

A session is one process: the first one, or a resume. `sessions.json` lists all of them.
"""

import json
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from selfplay.errors import RunError, SelfplayError, one_line, printable
from selfplay.run.directory import reporting_disk
from selfplay.run.untrusted import check_inside, read_limited, write_text_confined
from selfplay.types import to_json

FILE = "sessions.json"
"""File of the run folder."""
DAMAGED = "sessions.damaged.json"
"""Name that a damaged file gets."""
LONGEST_ENDING = 2_000
"""Largest number of characters of a session's ending."""
LONGEST_FILE = 1_000_000
"""Largest number of bytes of the file."""
MOST_SESSIONS = 500
"""Largest number of sessions in the file; of more, the oldest are left out."""
PACKAGES = ("selfplay", "torch", "transformers", "pettingzoo", "hydra-core", "numpy", "vllm", "ray")
"""Packages whose versions are recorded, if they are installed."""
PATIENCE = 10.0
"""Largest number of seconds that git may take."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A process that trained a run. `begin_session` makes it; pages read it."""

    begun: Annotated[str, Field(max_length=40)]
    """Local date and time."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Python and packages to their versions."""
    commit: Annotated[str, Field(max_length=80)] = ""
    """Git commit of this library's source; empty for an installed package."""
    changed: bool = False
    """True if tracked files of this source differ from the commit."""
    project: Annotated[str, Field(max_length=80)] = ""
    """Git commit of the current folder, if it is another repository."""
    step: int = 0
    """Step from which the process trained."""
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Settings that this resume changed, by dotted key: the values before and after."""
    ending: Annotated[str, Field(max_length=LONGEST_ENDING)] = ""
    """The error or interrupt that ended the process, in one line; empty without one."""

    @property
    def code(self) -> str:
        """The commit in seven characters, with "+" if files were changed; else the version."""
        if not self.commit:
            return self.versions.get("selfplay", "")
        return self.commit[:7] + "+" * self.changed


_SESSIONS: TypeAdapter[list[Session]] = TypeAdapter(list[Session])


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run uses."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _free(path: Path) -> Path:
    """Return the path, or the first free path with a number if it exists already."""
    others = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(each for each in chain([path], others) if not each.exists())


def begin_session(
    run: Path, *, step: int = 0, settings: Mapping[str, tuple[Any, Any]] | None = None
) -> Session:
    """Add this process to the sessions of a run, and return it.

    `step` and `settings` are those of `Session`.

    A damaged file is kept as `DAMAGED`, and training does not stop for it. Raises RunError if the
    file is a link or cannot be written.
    """
    earlier: Sequence[Session] = []
    with reporting_disk(run):
        try:
            earlier = read_sessions(run)
        except RunError:
            check_inside(run, run / FILE)
            (run / FILE).replace(_free(run / DAMAGED))
    commit, changed = _own_commit(Path(__file__))
    project = _git(Path.cwd(), "rev-parse", "HEAD")
    session = Session(
        begun=time.strftime("%Y-%m-%d %H:%M:%S"),
        versions=versions(),
        commit=commit,
        changed=changed,
        project="" if project == commit else project,
        step=step,
        settings=settings or {},
    )
    _write(run, [*earlier, session])
    return session


def end_session(run: Path, error: BaseException) -> None:
    """Write the error or interrupt that ends this process into the last session of a run.

    A file that is damaged, missing or cannot be written stays as it is: `error` is more important.
    """
    whole = isinstance(error, SelfplayError | KeyboardInterrupt)
    said = str(error) if whole else one_line(error)
    with suppress(RunError, OSError):
        sessions = read_sessions(run)
        if sessions:
            ended = replace(sessions[-1], ending=printable(said)[:LONGEST_ENDING])
            _write(run, [*sessions[:-1], ended])


def ending(run: Path) -> str:
    """Return the error or interrupt that ended the last session of a run; empty without one.

    It is also empty if the file of the sessions is damaged.
    """
    try:
        sessions = read_sessions(run)
    except RunError:
        return ""
    return sessions[-1].ending if sessions else ""


def _write(run: Path, sessions: Sequence[Session]) -> None:
    text = json.dumps(to_json(sessions[-MOST_SESSIONS:]), indent=1) + "\n"
    with reporting_disk(run):
        write_text_confined(run, run / FILE, text)


def read_sessions(run: Path) -> Sequence[Session]:
    """Return the sessions of a run, the first one first; none without the file.

    Raises RunError, in one line, for a file that is not a list of sessions.
    """
    path = run / FILE
    try:
        return _SESSIONS.validate_json(read_limited(path, root=run, most=LONGEST_FILE))
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise RunError(f"{path}: {error.errors()[0]['msg'][:200]}") from error


def _own_commit(module: Path) -> tuple[str, bool]:
    """Return the git commit of this library's source, and True if its tracked files are changed.

    The commit is empty without git, and for an installed package, which may lie in an environment
    inside another repository: git does not track `module` there. The search for changes may run
    programs that the repository's settings name, so it is made only for the library's own source.
    """
    if not _git(module.parent, "ls-files", "--", module.name):
        return "", False
    changes = _git(module.parent, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    return _git(module.parent, "rev-parse", "HEAD"), bool(changes)


def _git(folder: Path, *words: str) -> str:
    try:
        made = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return made.stdout.strip() if made.returncode == 0 else ""
