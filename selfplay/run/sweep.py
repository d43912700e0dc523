"""A sweep: one run for every combination of the values that a command line lists.

    selfplay train -m +experiment=tiny/quickstart credit=grpo,rloo seed=0,1,2 run.name=ablation

A sweep is a folder of run folders with a `sweep.json` that lists the overrides of each run. Every
run has a process of its own, so that no run inherits the random state of another. The same command
continues a sweep that was stopped.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from pathlib import Path
from signal import Signals
from threading import Event

from pydantic import TypeAdapter

from selfplay.config.composition import SINGLE, parse
from selfplay.config.trust import flags
from selfplay.errors import ConfigError, RunError
from selfplay.run import files, signals
from selfplay.run.directory import check_links, reporting_disk, write_atomic
from selfplay.run.module_path import module_path
from selfplay.run.run_folder import CONFIG, SUMMARY
from selfplay.run.untrusted import open_regular
from selfplay.types import to_json

FILE = "sweep.json"
"""File of the folder that lists the runs."""
MOST_RUNS = 10_000
"""Largest number of runs of a sweep."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep."""

    name: str
    """Name of the run folder."""
    choices: Mapping[str, str]
    """The value of every swept key."""
    overrides: tuple[str, ...]
    """All overrides of the run, without run.folder and run.name."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All runs of one command line."""

    command: tuple[str, ...]
    """Arguments of the command line."""
    points: tuple[Point, ...]
    """The runs; the last swept key changes fastest."""


def plan(overrides: Sequence[str]) -> Sweep:
    """Return a run for every combination of the listed values.

    Raises ConfigError if no override lists several values, if one lists several folders, or if the
    runs are too many.
    """
    fixed: list[str] = []
    swept: dict[str, list[str]] = {}
    for text in overrides:
        parsed = parse(text)
        if parsed.is_sweep_override():
            if parsed.key_or_group in SINGLE:
                raise ConfigError(
                    f"-m: {text[:60]} lists several values, and all runs of a sweep are in one "
                    "folder, run.folder/run.name; write one value without commas"
                )
            listed = list(islice(parsed.sweep_string_iterator(), MOST_RUNS + 1))
            if len(listed) > MOST_RUNS:
                raise ConfigError(f"-m: {text[:60]} lists more than {MOST_RUNS:,} values")
            swept[parsed.get_key_element()] = listed
        else:
            fixed.append(text)
    if not swept:
        raise ConfigError(
            "-m: no argument lists several values, such as seed=0,1,2; drop -m for a single run"
        )
    if prod(map(len, swept.values())) > MOST_RUNS:
        raise ConfigError(f"-m: the values combine to more than {MOST_RUNS:,} runs; list fewer")
    points = []
    for number, values in enumerate(product(*swept.values())):
        choices = {key.lstrip("+~"): value for key, value in zip(swept, values, strict=True)}
        readable = "-".join(f"{key}_{value}" for key, value in choices.items())
        points.append(
            Point(
                name=f"{number:03d}-" + re.sub(r"[^\w.-]", "_", readable)[:100],
                choices=choices,
                overrides=(*fixed, *(f"{k}={v}" for k, v in zip(swept, values, strict=True))),
            )
        )
    return Sweep(command=tuple(overrides), points=tuple(points))


def run(
    folder: Path,
    sweep: Sweep,
    *,
    arguments: Sequence[str] = (),
    trusted: Sequence[str] = (),
    jobs: int = 1,
    report: Callable[[str], None] = print,
) -> list[str]:
    """Train or resume the runs that have not ended; return the names of those that failed.

    Args:
        folder: The folder of the sweep, which holds the run folders.
        sweep: The runs.
        arguments: Further arguments of `selfplay train`, such as --config-dir.
        trusted: Packages whose code the configs name, for runs that are resumed.
        jobs: Number of runs at the same time.
        report: Prints a line of progress.
    Raises:
        ConfigError: If `jobs` is less than 1.
        RunError: If the folder holds something else, or cannot be written.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs: at least 1 is needed, not {jobs}")
    _claim(folder, sweep)
    processes: list[subprocess.Popen[bytes]] = []
    stopping = Event()

    def one(numbered: tuple[int, Point]) -> str | None:
        number, point = numbered
        title = f"run {number} of {len(sweep.points)}: {point.name}"
        place = folder / point.name
        if (place / SUMMARY).is_file():
            report(f"{title} is done")
            return None
        if (place / CONFIG).is_file():
            what = [f"resume={place}", *flags(trusted)]
        else:
            what = [*arguments, *point.overrides, f"run.folder={folder}", f"run.name={point.name}"]
        report(title)
        # Lines of parallel runs would be mixed, so each run has a log file next to its folder.
        with (folder / f"{point.name}.log").open("a") as log:
            # -P: a file of the current folder, such as random.py, hides no module of Python.
            command = [sys.executable, "-P", "-m", "selfplay", "train", *what]
            named = {**os.environ, "PYTHONPATH": module_path()}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=named)
            processes.append(process)
            if stopping.is_set():  # the process started during the interruption
                process.terminate()
            code = process.wait()
        if code < 0 and (place / SUMMARY).is_file():
            code = 0  # a signal came after the end of the run
        if code:
            last = (folder / f"{point.name}.log").read_text(errors="replace").strip()
            how = "was interrupted" if code == signals.EXIT_CODE else "failed"
            how += f": {last.splitlines()[-1] if last else f'exit code {code}'}"
            if code < 0:  # the process had no time to say why
                how = f"was ended by {Signals(-code).name}"
            report(f"{title} {how}")
        return point.name if code else None

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return [name for name in pool.map(one, enumerate(sweep.points, 1)) if name]
        except BaseException:  # an interruption: start no more runs, and end the started ones
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise


def read(folder: Path) -> Sweep:
    """Read the sweep of a folder.

    Another person may have made the folder. Raises RunError if it is not a sweep, if a run of it is
    not a folder directly in it, or if it holds links that lead out of it.
    """
    path = folder / FILE
    try:
        with open_regular(path, root=folder) as file:
            found = TypeAdapter(Sweep).validate_json(file.read())
    except (OSError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise RunError(f"{path}: not the record of a sweep ({problem})") from error
    for name in (point.name for point in found.points):
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise RunError(
                f"{path}: the run {name[:80]!r} is no name of a folder in {folder}; write the name "
                "without a path"
            )
    check_links(folder, kind="sweep")
    return found


def _claim(folder: Path, sweep: Sweep) -> None:
    """Create the sweep's folder, or check that an existing folder holds the same sweep.

    The folder gets its name after its record is written: a kill leaves the name free.
    """
    if (folder / FILE).is_file():
        if read(folder).points != sweep.points:
            raise RunError(
                f"{folder} holds a sweep over other values and is never overwritten; choose "
                "another run.name"
            )
        return
    if folder.exists():
        raise RunError(f"{folder} exists and is not a sweep; choose another run.name")
    with reporting_disk(folder), files.appearing(folder) as partial:
        write_atomic(partial / FILE, json.dumps(to_json(sweep), indent=2) + "\n")
