"""A small recorded run with every file that the pages of a run read, and ways to damage it."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

from starlette.testclient import TestClient

from selfplay.errors import RunError
from selfplay.run.record_reader import episodes_of, read_metrics, recorded_steps
from selfplay.run.report import run_report
from selfplay.run.report.run_report import write_report
from selfplay.types import to_json
from selfplay.viewer import run_pages
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from tests.helpers.recorded_run import episodes as recorded
from tests.helpers.recorded_run import make_run

BIDI = "\u202e\u2066\u200f"
"""Characters that reorder the text after them."""
DIGITS = "9" * 5_000

RAW = (
    "1e400",
    "-1e400",
    "NaN",
    "9" * 400,
    DIGITS,
    "9" * 12,
    "-3",
    "0",
    "1e308",
    "-5e-324",
    "null",
    "true",
    "[]",
    "{}",
    '""',
    json.dumps(f"a{BIDI}b"),
    '"\\ud800\\u0000"',
    "[" * 900 + "]" * 900,
    "[" * 100_000 + "]" * 100_000,
    "[1, [2, {}], null]",
    '{"": {"": null}}',
    '{"role": 3, "content": [3]}',
)
"""JSON texts that replace a value."""

PAGES = (
    "/",
    "/run/made",
    "/run/made?section=Roles&page=1",
    "/compare?run=made&run=twin",
    "/run/made/episodes",
    "/run/made/episodes?text=the&role=solver&outcome=paid",
    "/run/made/episodes?said=answer&sort=reward&down=1",
    "/run/made/groups?text=the&sort=spread",
    "/run/made/episodes/1/1",
    "/run/made/episodes/1/2?colour=advantage",
    "/run/made/episodes/1/2?colour=likelihood",
    "/run/made/groups/1/g0",
    "/run/made/games",
    "/run/made/games/one",
    "/run/made/league",
    "/run/made/tasks",
    f"/run/made/episodes/1/{DIGITS}",
    f"/run/made/episodes/{DIGITS}/1",
    f"/run/made/episodes/{DIGITS}",
    f"/run/made/groups/{DIGITS}/g0",
    f"/run/made?page={DIGITS}",
    f"/run/{DIGITS}",
)

FILES = (
    "metrics.jsonl",
    "summary.json",
    "measures.json",
    "config.yaml",
    "episodes/000001.jsonl",
    "checkpoints/000003/state.json",
    "rolled_back/1/why.json",
    "games/one.jsonl",
)


def whole_run(run: Path) -> Path:
    """Make a run with every kind of file that the pages read."""
    make_run(run, steps=4)
    task = {"id": "t", "type": "deduction", "payload": {"code": "return 7"}}
    entry = {"number": 0, "task": task, "step": 1, "author": "a", "parents": [0], "attempts": 4}
    state = {
        "step": 3,
        "curriculum": {"buffer": {"entries": {"deduction": [{**entry, "solved": 3}]}}},
        "league": {
            "ratings": {"ratings": {"base": [27.0, 1.0], "random": 20.0}},
            "payoff": {"counts": [["base", "random", 6, 2, 0], ["random", "base", 0, 2, 6]]},
            "played": [["base", "random", "p_0", 4, 2], ["base", "random", "p_1", 4, 1]],
            "seats": ["p_0", "p_1"],
        },
    }
    rows = [
        {"step": step, "evaluation/held_out_greedy/accuracy": 0.1 * step, "role/solver/reward": 0.5}
        for step in (1, 2)
    ]
    for name, text in {
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "checkpoints/000003/state.json": json.dumps(state),
        "rolled_back/1/why.json": json.dumps({"from": 3, "to": 1, "alarms": ["entropy"]}),
        "games/one.jsonl": json.dumps({"episode": to_json(recorded()[1])}) + "\n",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return run


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value, but only of two elements of each list."""
    yield where
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*where, key))
    elif isinstance(value, list):
        for number, each in enumerate(value[:2]):
            yield from places(each, (*where, number))


def replaced(value: Any, where: tuple[Any, ...], raw: str) -> str:
    """Return the JSON text of `value`, with the value at a path replaced by the text `raw`."""
    mark = "@@here@@"
    if not where:
        return raw
    changed = deepcopy(value)
    inner = changed
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = mark
    return json.dumps(changed).replace(f'"{mark}"', raw)


def pipe(path: Path) -> None:
    """Replace a file by a named pipe without a writer."""
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    """Move a file out of the run, and replace it by a link to it."""
    outside = path.parents[len(path.parts) - 1 - path.parts.index("made")] / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def folder(path: Path) -> None:
    """Replace a file by a folder."""
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_text(""),
    "blank lines": lambda path: path.write_text("\n\n\n"),
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "no object": lambda path: path.write_text("[]\n"),
    "a number": lambda path: path.write_text(DIGITS + "\n"),
    "deep": lambda path: path.write_text("[" * 100_000 + "\n"),
    "missing": Path.unlink,
    "folder": folder,
    "pipe": pipe,
    "link out": link,
}


def faults(runs: Path, cache: Path, *, drawn: bool = True) -> list[str]:
    """Ask for every page, the report and the reader; return the faults of the answers.

    Without `drawn` no chart is drawn, because drawing takes most of the time.
    """
    with ExitStack() as stack:
        for module in () if drawn else (run_pages, run_report):
            stack.enter_context(mock.patch.object(module, "draw", lambda chart: "<svg></svg>"))
        return _faults(runs, cache)


def _faults(runs: Path, cache: Path) -> list[str]:
    found = []
    client = TestClient(
        application(RunCatalogue([runs], later=[runs]), cache=cache),
        base_url="http://127.0.0.1",
        raise_server_exceptions=False,
    )
    with client:
        for page in PAGES:
            answer = client.get(page)
            if answer.status_code not in (200, 404):
                found.append(f"{page[:60]}: {answer.status_code}")
            if set(BIDI) & set(answer.text) or "Traceback" in answer.text:
                found.append(f"{page[:60]}: shows a control character or a traceback")
    run = runs / "made"
    for name, ask in (
        ("report", lambda: set(write_report(run).read_text()) & set(BIDI)),
        ("metrics", lambda: read_metrics(run / "metrics.jsonl") and None),
        ("episodes", lambda: [list(episodes_of(run, s)) for s in recorded_steps(run)] and None),
    ):
        try:
            if ask():
                found.append(f"{name}: shows a control character")
        except RunError as error:
            if "\n" in str(error) or len(str(error)) > 600:
                found.append(f"{name}: not a short line: {str(error)[:200]}")
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    return found
