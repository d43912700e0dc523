"""The task buffer as the newest checkpoint has it: difficulty over time, and who came from whom."""

from pathlib import Path
from typing import Any, TypeAlias

from selfplay.charts import Chart, Series
from selfplay.errors import RunError
from selfplay.figures import figure
from selfplay.viewer.state import newest_state

Entry: TypeAlias = dict[str, Any]
"""A task with its number, author, parents and attempts, as the checkpoint's JSON has it."""

MOST_ANCESTORS = 50
"""Tasks that a lineage goes back to."""


class Buffer:
    """The buffer of one run."""

    def __init__(self, run: Path) -> None:
        """Reads the newest checkpoint's state; raises RunError where it has no task buffer."""
        try:
            kinds: dict[str, list[Entry]] = newest_state(run)["curriculum"]["buffer"]["entries"]
            self._entries = {entry["number"]: entry for kept in kinds.values() for entry in kept}
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"the curriculum of {run.name} keeps no task buffer") from error
        self.kinds = sorted(kinds)

    def of_type(self, kind: str) -> list[Entry]:
        """The tasks of a type, the newest first; of all types where it is empty."""
        ordered = sorted(self._entries.items(), reverse=True)
        return [entry for _, entry in ordered if not kind or entry["task"]["type"] == kind]

    def lineage(self, number: int) -> list[Entry]:
        """A task and those it was made from, breadth first; those that have left are not known."""
        found: dict[int, Entry] = {}
        waiting = [number]
        while waiting and len(found) < MOST_ANCESTORS:
            first = waiting.pop(0)
            if first in self._entries and first not in found:
                found[first] = self._entries[first]
                waiting += found[first]["parents"]
        return list(found.values())

    def charts(self, kind: str) -> list[Chart]:
        """How hard tasks are, by the step that they came in; none while nothing was attempted."""
        rates: dict[int, list[float]] = {}
        for entry in self.of_type(kind):
            if entry["attempts"]:
                rates.setdefault(entry["step"], []).append(entry["solved"] / entry["attempts"])
        means = [(step, sum(found) / len(found)) for step, found in sorted(rates.items())]
        if not means:
            return []
        steps, values = zip(*means, strict=True)
        curve = Series(
            label="all", steps=steps, values=values, latest=figure("solve_rate", values[-1])
        )
        title = "Solve rate of tasks, by the step they came in"
        return [Chart(title=title, series=(curve,), omitted=0, share=True)]
