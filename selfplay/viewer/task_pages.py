"""The tasks that the newest checkpoint's curriculum keeps: who came from whom, and how hard."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay.errors import RunError
from selfplay.run.formatting import figure
from selfplay.run.report.charts import Chart, Series
from selfplay.types import Metric
from selfplay.viewer.catalog import newest_state

MOST_RELATED = 50
"""Tasks that a lineage has, up and down together."""
BUFFER = ("step", "author", "solved")
LADDER = ("depth", "state", "variants asked for", "variants solved")
"""What a list says of a task, where it stands in a buffer and where on a ladder."""


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """One task."""

    key: str
    """What it is called in its list: its number in a buffer, its id on a ladder."""
    type: str
    """The kind of task."""
    id: str
    """Its id, by which episodes are found."""
    payload: Mapping[str, Any]
    """What the arena needs of it."""
    parents: tuple[str, ...]
    """Keys of those that it was made from, whether they are still kept or not."""
    columns: tuple[str, ...]
    """The values of the list's own columns."""
    group: str
    """What lists can be narrowed to: its type in a buffer, its state on a ladder."""


class TaskTable:
    """The tasks of one curriculum, in the order in which they came."""

    def __init__(
        self,
        entries: Sequence[TaskEntry],
        *,
        columns: Sequence[str],
        charts: Sequence[Chart] = (),
        facts: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`columns` names those of the entries; `charts` and `facts` are of all of them."""
        self.columns, self.charts, self.facts = columns, charts, facts
        self._entries = {entry.key: entry for entry in entries}
        self.groups = sorted({entry.group for entry in entries})
        """What the list can be narrowed to."""

    def listed(self, group: str) -> list[TaskEntry]:
        """The tasks of a group, the newest first; all of them where it is empty."""
        found = reversed(self._entries.values())
        return [entry for entry in found if not group or entry.group == group]

    def ancestors(self, key: str) -> list[TaskEntry]:
        """A task and those it was made from, breadth first; those that have left are not known."""
        found: dict[str, TaskEntry] = {}
        waiting = [key]
        while waiting and len(found) < MOST_RELATED:
            first = waiting.pop(0)
            if first in self._entries and first not in found:
                found[first] = self._entries[first]
                waiting += found[first].parents
        return list(found.values())

    def children(self, key: str) -> list[TaskEntry]:
        """Those that were made from it, the newest first."""
        return [entry for entry in self.listed("") if key in entry.parents][:MOST_RELATED]


def tasks_of(run: Path) -> dict[str, TaskTable]:
    """The tasks of a run by part of its mixture; under "" where it is none.

    Raises RunError where there is no checkpoint, or no part of the curriculum keeps any.
    """
    state = newest_state(run).get("curriculum")
    try:
        parts = state.get("parts", {}) if isinstance(state, dict) else {}
        found = {name: _tasks(part) for name, part in ({"": state, **parts}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise RunError(f"the curriculum of {run.name} is damaged ({error!r})") from error
    kept = {name: tasks for name, tasks in found.items() if tasks is not None}
    if not kept:
        raise RunError(f"the curriculum of {run.name} keeps no tasks of its own")
    return kept


def _tasks(state: Any) -> TaskTable | None:
    """Of one curriculum's state; None where it keeps none."""
    if isinstance(state, dict) and "rungs" in state:
        return _ladder(state["rungs"])
    if isinstance(state, dict) and "entries" in state.get("buffer", {}):
        kinds = state["buffer"]["entries"].values()
        return _buffer(sorted((e for kept in kinds for e in kept), key=lambda e: int(e["number"])))
    return None


def _buffer(entries: list[dict[str, Any]]) -> TaskTable:
    rates: dict[int, list[float]] = {}
    for entry in entries:
        if entry["attempts"]:
            # What was there before training has a step below 0, by which it was filled.
            rates.setdefault(max(int(entry["step"]), 0), []).append(
                entry["solved"] / entry["attempts"]
            )
    means = [(step, sum(found) / len(found)) for step, found in sorted(rates.items())]
    title = "Solve rate of tasks, by the step they came in; 0 is before training"
    return TaskTable(
        [
            _entry(
                entry,
                key=str(entry["number"]),
                parents=tuple(map(str, entry["parents"])),
                columns=(
                    str(entry["step"]) if entry["step"] >= 0 else "seed",
                    str(entry["author"]),
                    f"{entry['solved']} of {entry['attempts']}" if entry["attempts"] else "-",
                ),
                group=str(entry["task"]["type"]),
            )
            for entry in entries
        ],
        columns=BUFFER,
        charts=[_chart(title, means)] if means else [],
    )


def _ladder(rungs: list[dict[str, Any]]) -> TaskTable:
    counts = Counter((int(rung["depth"]), str(rung["state"])) for rung in rungs)
    deepest = max((depth for depth, _ in counts), default=0)
    states = sorted({state for _, state in counts})
    by_depth = [
        (
            f"{depth} below" if depth else "roots",
            ", ".join(f"{counts[depth, each]} {each}" for each in states if counts[depth, each]),
        )
        for depth in range(deepest + 1)
    ]
    return TaskTable(
        [
            _entry(
                rung,
                key=str(rung["task"]["id"]),
                parents=(str(rung["parent"]),) if rung["parent"] else (),
                columns=(
                    str(rung["depth"]) if rung["depth"] else "root",
                    str(rung["state"]),
                    str(rung["tries"]),
                    # Runs of before they were named kept their number alone.
                    str(len(c) if isinstance(c := rung["climbed"], list) else c),
                ),
                group=str(rung["state"]),
            )
            for rung in rungs
        ],
        columns=LADDER,
        facts=by_depth,
    )


def _entry(kept: Mapping[str, Any], **fields: Any) -> TaskEntry:
    task = kept["task"]
    payload = dict(task.get("payload", {}))
    return TaskEntry(type=str(task["type"]), id=str(task["id"]), payload=payload, **fields)


def _chart(title: str, points: Sequence[tuple[int, float]]) -> Chart:
    steps, values = zip(*points, strict=True)
    latest = figure(Metric(unit="fraction"), values[-1])
    curve = Series(label="all", steps=steps, values=values, latest=latest)
    return Chart(title=title, series=(curve,), omitted=0, share=True)
