"""The part of a run's index that lists groups: one row each, with words and frequent answers."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfplay.errors import RunError, nearest
from selfplay.viewer.answers import Answer, counted
from selfplay.viewer.episode_filter import PAGE, EpisodeFilter, SortOrder, condition
from selfplay.viewer.episode_list import EpisodeList, RoleWords

TABLES = """
CREATE TABLE groups (
  step INTEGER, name TEXT, type TEXT, task TEXT, members INTEGER, mean REAL, spread REAL,
  PRIMARY KEY (step, name)
) WITHOUT ROWID;
CREATE INDEX by_mean ON groups (mean);
CREATE INDEX by_spread ON groups (spread);
"""
NAMES = ("groups",)
"""Names of the tables."""
ORDERS = ("mean", "spread")
"""Names of the values that groups are sorted by."""


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """A row of a list of groups."""

    step: int
    """The step that played it."""
    name: str
    """Id of the group."""
    type: str
    """Type of the task."""
    task: str
    """Id of the task."""
    members: int
    """Number of episodes."""
    mean: float
    """Mean reward of the episodes; an episode's reward is the sum over its agents."""
    spread: float
    """Highest reward of an episode minus the lowest."""
    words: tuple[RoleWords, ...] = ()
    """Texts of the first member."""
    answers: tuple[Answer, ...] = ()
    """Most frequent answers of all members."""


class GroupList:
    """The rows of groups of one run. The caller holds the index's lock."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base, self._episodes = base, EpisodeList(base)

    def forget(self, step: int) -> None:
        """Remove a step."""
        self._base.execute("DELETE FROM groups WHERE step = ?", (step,))

    def add(self, step: int) -> None:
        """Add the groups of a step, after all its episodes."""
        self._base.execute(
            "INSERT INTO groups SELECT step, grouped, min(type), min(task), count(*), avg(reward), "
            "max(reward) - min(reward) FROM episodes WHERE step = ? AND status != 'unreadable' "
            "GROUP BY grouped",
            (step,),
        )

    def find(self, asked: EpisodeFilter, order: SortOrder, page: int) -> tuple[list[GroupRow], int]:
        """Return the groups of a page (from 0) with an episode that the filter selects, and the
        total number.

        Raises RunError if groups have no value of the order's name.
        """
        if order.by and order.by not in ORDERS:
            hint = nearest(order.by, ORDERS)
            raise RunError(f"groups are not sorted by {order.by[:80]!r}; {hint}")
        where, values = condition(asked)
        source = "groups"
        if where:
            # A filter of words may find every episode: the groups are collected first, each once.
            found = f"(SELECT DISTINCT e.step AS s, e.grouped AS n FROM episodes e {where})"
            source = f"{found} CROSS JOIN groups ON step = s AND name = n"
        by = "step DESC, name"
        if order.by:
            by = f"{order.by} {'DESC' if order.descending else 'ASC'}, {by}"
        rows = self._base.execute(  # one pass gives the rows and their number
            "SELECT count(*) OVER (), step, name, type, task, members, mean, spread "
            f"FROM {source} ORDER BY {by} LIMIT {PAGE} OFFSET ?",
            (*values, page * PAGE),
        ).fetchall()
        if rows or not page:
            return [self._row(row) for _, *row in rows], rows[0][0] if rows else 0
        total = self._base.execute(f"SELECT count(*) FROM {source}", values).fetchone()[0]
        return [], total

    def around(self, step: int, name: str) -> tuple[tuple[int, str] | None, ...]:
        """Return (step, name) of the previous and of the next group in the list by step."""
        return (
            self._place(
                "(step = ? AND name < ?) OR step > ? ORDER BY step, name DESC", (step, name, step)
            ),
            self._place(
                "(step = ? AND name > ?) OR step < ? ORDER BY step DESC, name", (step, name, step)
            ),
        )

    def _place(self, condition: str, values: Sequence[Any]) -> tuple[int, str] | None:
        sql = f"SELECT step, name FROM groups WHERE {condition} LIMIT 1"
        row = self._base.execute(sql, tuple(values)).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    def _row(self, row: Sequence[Any]) -> GroupRow:
        step, name, *_ = row
        first = self._base.execute(
            "SELECT id FROM episodes WHERE step = ? AND grouped = ? ORDER BY member LIMIT 1",
            (step, name),
        ).fetchone()
        members = "SELECT id FROM episodes WHERE step = ? AND grouped = ?"
        return GroupRow(
            **dict(
                zip(("step", "name", "type", "task", "members", "mean", "spread"), row, strict=True)
            ),
            words=self._episodes.words_of(first[0]) if first else (),
            answers=tuple(counted(self._base, members, (step, name), by_view=False)),
        )
