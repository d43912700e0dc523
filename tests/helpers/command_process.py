"""Runs of the `selfplay` command in separate processes, which a test may kill at a chosen call.

The processes are forks of a server that has imported everything, so that each starts in a second.
"""

import atexit
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
from contextlib import chdir
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from filelock import FileLock

from tests.helpers.repository import ROOT, SHARED

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "selfplay.cli.main",
        "selfplay.train",
        "selfplay.run.report.run_report",
        "selfplay.engines.transformers",
        "arenas.absolute_zero.demonstrations",
        "roles.proposer",
        "roles.solver",
        "transformers.models.qwen3.modeling_qwen3",
        "tests.helpers.warm_command",
    ]
)
OURS = ("roles", "arenas", "configs")
LONGEST = 600
"""Seconds after which a command counts as hanging."""
SMOKE = "+experiment=tiny/smoke"


@dataclass(frozen=True, kw_only=True)
class InjectedFault:
    """A fault at one call of a function in the process: a signal, or a full disk."""

    at: str
    """Dotted name of the function, as its caller looks it up."""
    call: int = 1
    """Number of the call, from 1."""
    after: bool = False
    """True if the fault comes after the call and not before it."""
    number: int = signal.SIGKILL
    """Number of the signal."""
    limit: int | None = None
    """Largest size of files in bytes after the fault, as on a full disk; None: send the signal."""

    def arm(self) -> None:
        """Replace the function by one that causes the fault."""
        original, calls = resolve_name(self.at), 0
        home, _, name = self.at.rpartition(".")

        def faulty(*arguments: Any, **settings: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.call and not self.after:
                self.cause()
            result = original(*arguments, **settings)
            if calls == self.call and self.after:
                self.cause()
            return result

        setattr(resolve_name(home), name, faulty)

    def cause(self) -> None:
        """Send the signal, or limit the size of files."""
        if self.limit is None:
            if self.number in (signal.SIGHUP, signal.SIGQUIT):  # a parent may ignore them
                signal.signal(self.number, signal.SIG_DFL)
            os.kill(os.getpid(), self.number)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, self.limit))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Exit code and output of a command that has ended."""

    code: int
    """Exit code; negative if a signal ended the command."""
    out: str
    err: str


def run(
    *arguments: str,
    cwd: Path,
    injected: InjectedFault | None = None,
    alarm: float = 0.0,
    cache: Path | None = None,
    first_on_path: Path | None = None,
    charts: bool = False,
) -> Outcome:
    """Run `selfplay` with these arguments in the folder `cwd`; return its outcome.

    Unless `alarm` is 0, a signal ends the command after so many seconds. With `first_on_path` the
    command imports `roles`, `arenas` and `configs` again, and looks into this folder first. Without
    `charts` the report of a run has no charts, because drawing them takes longer than a smoke run.
    """
    start_server()
    with tempfile.TemporaryDirectory() as texts:
        out, err = Path(texts, "out"), Path(texts, "err")
        process = CONTEXT.Process(
            target=_child,
            args=(
                *(arguments, cwd, cache or shared_cache()),
                *(injected, alarm, first_on_path, charts, out, err),
            ),
        )
        process.start()
        process.join(LONGEST)
        if process.is_alive():
            process.kill()
            raise AssertionError(f"{arguments} hangs: {err.read_text()}")
        code = process.exitcode
        assert code is not None
        return Outcome(code=code, out=out.read_text(), err=err.read_text())


def _child(
    arguments: tuple[str, ...],
    cwd: Path,
    cache: Path,
    injected: InjectedFault | None,
    alarm: float,
    first_on_path: Path | None,
    charts: bool,
    out: Path,
    err: Path,
) -> None:
    os.setsid()
    os.chdir(cwd)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ["SELFPLAY_CACHE"] = str(cache)
    import_module("selfplay.train")
    report: Any = import_module("selfplay.run.report.run_report")
    if not charts:
        report.draw = lambda chart: "<svg></svg>"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if injected:
        injected.arm()
    if first_on_path:
        sys.path.insert(0, str(first_on_path))
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
    signal.setitimer(signal.ITIMER_REAL, alarm)
    from selfplay.cli.main import main

    code = main(arguments)
    sys.stdout.flush()
    sys.exit(code)


@lru_cache(maxsize=1)
def start_server() -> None:
    """Start the server in the repository, where it finds the modules that it loads."""
    with chdir(ROOT):
        ensure_running()


@lru_cache(maxsize=1)
def shared_cache() -> Path:
    """Return a cache folder in which the first run leaves its warm start for all others."""
    folder = tempfile.mkdtemp(prefix="selfplay-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@lru_cache(maxsize=1)
def finished() -> Path:
    """Return the folder of a finished smoke run. A test that changes the run must copy it first.

    The first pytest worker that needs the run makes it. Its warm start is then in the cache.
    """
    folder = Path(os.environ[SHARED]) / "finished"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            made = Path(tempfile.mkdtemp(dir=folder.parent))
            cache = made / "cache"
            outcome = run("train", SMOKE, "run.name=whole", cwd=made, cache=cache, charts=True)
            assert outcome.code == 0, outcome.err
            made.rename(folder)
    shutil.copytree(folder / "cache", shared_cache(), dirs_exist_ok=True)
    return folder / "runs" / "whole"


def copy_of_finished(folder: Path) -> Path:
    """Return a copy of the finished run that a test may damage."""
    place = folder / "runs" / "copy"
    shutil.copytree(finished(), place)
    return place


def metrics(run_folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without the metrics that depend on the process.

    These are the times, and the number of program runs whose results the executor had cached,
    because a resumed run begins with an empty cache.
    """
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [
        {
            key: value
            for key, value in json.loads(line).items()
            if not key.startswith("seconds/") and not key.endswith("/executor/cached")
        }
        for line in lines
    ]


def summary(run_folder: Path) -> dict[str, Any]:
    """Return summary.json without the entries that differ between equal runs."""
    found = json.loads((run_folder / "summary.json").read_text())
    return {k: v for k, v in found.items() if k not in ("name", "seconds", "command")}


def contents(run_folder: Path) -> dict[str, bytes]:
    """Return the bytes of the episode files and of the policies after step 3, by path."""
    paths = [*run_folder.glob("episodes/*"), *run_folder.glob("checkpoints/000003/policies/*/*")]
    return {str(path.relative_to(run_folder)): path.read_bytes() for path in paths}


def assert_alike(run_folder: Path, other: Path) -> None:
    """Assert that two runs have equal metrics, summaries, episodes and policies."""
    for line, expected in zip(metrics(run_folder), metrics(other), strict=True):
        assert line == expected
    assert summary(run_folder) == summary(other)
    assert contents(run_folder) == contents(other)


def one_line(text: str) -> str:
    """Return the only line of a text that a command wrote to stderr."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    return lines[0]
