"""Ladders of tasks, and run folders that hold a curriculum's state."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfplay.curriculum.ladder import Ladder
from selfplay.types import Group, Task
from tests.helpers.builders import episode, group, turn


def tried(task: Task, solved: int, *made: Task) -> Group:
    metrics = {"attempts": 8, "solved": solved}
    return group(episode(turn("solver_0"), task=task, metrics=metrics, created=made))


def ladder() -> Ladder:
    """Return a ladder with a waiting root task, two variants of it, and a variant of a variant."""
    root = Task(id="root", type="sum", payload={"question": "hard"})
    made = Ladder(roots=[root], batch=4, proposals=1, variants=3, climb=2, depth=2)
    made.observe([tried(root, 0)], 1)
    for step, name, solved in ((2, "easy", 8), (3, "middling", 0)):
        (asked,) = (t for t in made.tasks(step) if "parent" in t.payload)
        made.observe([tried(asked, solved, Task(id=name, type="sum"))], step)
    asked = Task(id="x", payload={"parent": "middling"})
    made.observe([tried(asked, 8, Task(id="easiest", type="sum"))], 4)
    return made


def saved(run: Path, state: Mapping[str, Any]) -> Path:
    place = run / "checkpoints/000004"
    place.mkdir(parents=True, exist_ok=True)
    (place / "state.json").write_text(json.dumps({"curriculum": state}))
    return run
