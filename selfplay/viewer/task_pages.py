"""Tasks of the curriculum in the newest checkpoint, with their parents and solve counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfplay.errors import RunError, nearest
from selfplay.run.formatting import format_value
from selfplay.run.report.charts import Chart, Series
from selfplay.types import Metric
from selfplay.viewer.catalog import newest_state
from selfplay.viewer.episode_filter import SortOrder
from selfplay.viewer.excerpts import line_of

MOST_RELATED = 50
"""Largest number of ancestors, and of children, that a page shows."""
MOST_DEPTHS = 100
"""Largest number of depths of a ladder that a page counts."""
BUFFER = ("step", "author", "solved")
LADDER = ("depth", "state", "variants asked for", "variants solved")
"""Columns of the list of tasks, for tasks in a buffer and for tasks on a ladder."""


@dataclass(frozen=True, kw_only=True)
class TaskQuery:
    """The fields of an address of the list of tasks."""

    part: str = ""
    """Part of a mixture; empty: the first part."""
    group: str = ""
    """Type or state of the listed tasks; empty: all tasks."""
    task: str = ""
    """Key of the task whose ancestors and children are shown; empty: none."""
    words: str = ""
    """Texts that all occur in the listed tasks."""
    order: SortOrder = field(default_factory=SortOrder)
    """Order of the list."""
    page: int = 0
    """Page of the list, from 0."""

    def choose(self, parts: Mapping[str, "TaskTable"]) -> tuple[str, Mapping[str, "TaskTable"]]:
        """Return the asked part, or the first one if there is no such part, and all parts."""
        return self.part if self.part in parts else next(iter(parts)), parts

    def fields(self) -> dict[str, Any]:
        """Return the fields of the address of the list, without part and page."""
        named = {"group": self.group, "words": self.words, **self.order.fields()}
        return {name: value for name, value in named.items() if value}


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A row of the list of tasks."""

    key: str
    """Key of the task in its list: its number in a buffer, its id on a ladder."""
    type: str
    """The task's type."""
    id: str
    """The task's id; its episodes have the same id."""
    payload: Mapping[str, Any]
    """The task's data for the arena."""
    parents: tuple[str, ...]
    """Keys of the tasks that it was derived from; a key may no longer be in the list."""
    columns: tuple[str, ...]
    """Values of the columns `BUFFER` or `LADDER`."""
    ranks: tuple[float | str, ...]
    """Values that the list is sorted by, one for each column."""
    group: str
    """Group of the task for filtering: its type in a buffer, its state on a ladder."""

    @property
    def content(self) -> str:
        """The id and the data of the task as text, in which the page searches."""
        return "\n".join([self.id, *(f"{key}: {value}" for key, value in self.payload.items())])

    @property
    def line(self) -> str:
        """The data of the task in one line, or its id if there is none."""
        return line_of("\n".join(map(str, self.payload.values()))) or line_of(self.id)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        named = {name: value for name, value in vars(self).items() if name != "ranks"}
        return {**named, "line": self.line}


class TaskTable:
    """The tasks of one curriculum, the oldest first."""

    def __init__(
        self,
        entries: Sequence[TaskEntry],
        *,
        columns: Sequence[str],
        charts: Sequence[Chart] = (),
        facts: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Args:
        entries: The tasks, the oldest first.
        columns: Names of the entries' columns.
        charts: Charts over all tasks.
        facts: (name, value) pairs about all tasks.
        """
        self.columns, self.charts, self.facts = columns, charts, facts
        self._entries = {entry.key: entry for entry in entries}
        self.groups = sorted({entry.group for entry in entries})
        """Groups that the list can be filtered by."""

    def listed(
        self, group: str = "", words: str = "", order: SortOrder | None = None
    ) -> list[TaskEntry]:
        """Return tasks, the newest first.

        Args:
            group: Group of the tasks; empty: all groups.
            words: Texts, separated by spaces, that all occur in the task, in any case.
            order: Column to sort by; None or empty: the newest first. Raises RunError if the list
                has no such column.
        """
        parts = [part.casefold() for part in words.split()]
        found = [
            entry
            for entry in reversed(self._entries.values())
            if (not group or entry.group == group)
            and (not parts or all(part in entry.content.casefold() for part in parts))
        ]
        if order is None or not order.by:
            return found
        if order.by not in self.columns:
            hint = nearest(order.by, self.columns)
            raise RunError(f"tasks are not sorted by {order.by[:80]!r}; {hint}")
        place = self.columns.index(order.by)
        return sorted(found, key=lambda entry: entry.ranks[place], reverse=order.descending)

    def ancestors(self, key: str) -> list[TaskEntry]:
        """Return a task and those of its ancestors that the curriculum still has, breadth first."""
        found: dict[str, TaskEntry] = {}
        waiting = [key]
        while waiting and len(found) < MOST_RELATED:
            first = waiting.pop(0)
            if first in self._entries and first not in found:
                found[first] = self._entries[first]
                waiting += found[first].parents
        return list(found.values())

    def children(self, key: str) -> list[TaskEntry]:
        """Return the tasks that were derived from a task, the newest first."""
        return [entry for entry in self.listed() if key in entry.parents][:MOST_RELATED]


def tasks_of(run: Path) -> dict[str, TaskTable]:
    """Read the tasks of a run, by part of its mixture; the key is "" without a mixture.

    Raises RunError if there is no checkpoint, or if the curriculum stores no tasks.
    """
    state = newest_state(run).get("curriculum")
    try:
        parts = state.get("parts", {}) if isinstance(state, dict) else {}
        found = {name: _tasks(part) for name, part in ({"": state, **parts}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise RunError(f"the curriculum of {run.name} is damaged ({error!r})") from error
    kept = {name: tasks for name, tasks in found.items() if tasks is not None}
    if not kept:
        raise RunError(f"the curriculum of {run.name} stores no tasks of its own")
    return kept


def _tasks(state: Any) -> TaskTable | None:
    """Return the tasks in the state of one curriculum; None if it stores none."""
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
            # Tasks from before training have a negative step.
            rates.setdefault(max(int(entry["step"]), 0), []).append(
                entry["solved"] / entry["attempts"]
            )
    means = [(step, sum(found) / len(found)) for step, found in sorted(rates.items())]
    title = "Solve rate of tasks, by the step that added them; 0 is before training"
    return TaskTable(
        [
            _entry(
                entry,
                key=str(entry["number"]),
                parents=tuple(map(str, entry["parents"])),
                columns=(
                    "seed" if entry["author"] == "seed" else str(entry["step"]),
                    str(entry["author"]),
                    f"{entry['solved']} of {entry['attempts']}" if entry["attempts"] else "-",
                ),
                ranks=(
                    float(entry["step"]),
                    str(entry["author"]),
                    entry["solved"] / entry["attempts"] if entry["attempts"] else -1.0,
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
    states = sorted({state for _, state in counts})
    by_depth = [
        (
            f"{depth} below" if depth else "roots",
            ", ".join(f"{counts[depth, each]} {each}" for each in states if counts[depth, each]),
        )
        for depth in sorted({depth for depth, _ in counts})[:MOST_DEPTHS]
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
                    str(len(rung["climbed"])),
                ),
                ranks=(
                    float(rung["depth"]),
                    str(rung["state"]),
                    float(rung["tries"]),
                    float(len(rung["climbed"])),
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
    latest = format_value(Metric(unit="fraction"), values[-1])
    curve = Series(label="all", steps=steps, values=values, latest=latest)
    return Chart(title=title, series=(curve,), omitted=0, share=True)
