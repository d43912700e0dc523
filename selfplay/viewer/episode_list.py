"""The part of a run's index that lists episodes: one row each, with the words of each role.

`EpisodeIndex` fills it while it reads a step. Lists are filtered, and sorted by rewards, metrics
and verdicts.
"""

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from selfplay.credit.base import pay_by_agent
from selfplay.errors import RunError, nearest
from selfplay.run.record_reader import Recorded
from selfplay.viewer.episode_filter import PAGE, EpisodeFilter, SortOrder, condition
from selfplay.viewer.excerpts import last_words

TABLES = """
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER, line INTEGER, start INTEGER, bytes INTEGER,
  grouped TEXT, member INTEGER, arena TEXT, type TEXT, task TEXT, status TEXT, invalid INTEGER,
  turns INTEGER, tokens INTEGER, reward REAL, rewards TEXT
);
CREATE INDEX by_step ON episodes (step, line);
CREATE INDEX by_group ON episodes (step, grouped, member);
CREATE INDEX by_status ON episodes (status);
CREATE TABLE roles (
  episode INTEGER, role TEXT, reward REAL, invalid INTEGER, shown TEXT, said TEXT, valid INTEGER
);
CREATE INDEX by_role ON roles (role, episode, reward, invalid);
CREATE INDEX of_episode ON roles (episode);
CREATE TABLE measures (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE measured (
  episode INTEGER, measure INTEGER, value REAL, PRIMARY KEY (episode, measure)
) WITHOUT ROWID;
CREATE INDEX by_value ON measured (measure, value, episode);
"""
NAMES = ("episodes", "roles", "measures", "measured")
"""Names of the tables."""
MOST_MEASURES = 64
"""Largest number of values of one episode that lists are sorted by."""
LONGEST_NAME = 100
"""Largest number of characters of the name of such a value."""
MOST_NAMES = 400
"""Largest number of names to choose from."""


@dataclass(frozen=True, kw_only=True)
class RoleWords:
    """Texts of the last move of one role in an episode, each in one line."""

    role: str
    """The role."""
    shown: str
    """New messages that the agent was shown."""
    said: str
    """The action, or the completion if it is no action."""
    valid: bool
    """True if the move has an action."""


@dataclass(frozen=True, kw_only=True)
class EpisodeRow:
    """A row of a list of episodes."""

    step: int
    """The step that played it."""
    line: int
    """Line of the episode in the step's file, from 1."""
    group: str
    """Id of the episode's group."""
    member: int
    """Index of the episode in its group."""
    arena: str
    """The arena's name."""
    type: str
    """The task's type."""
    task: str
    """The task's id."""
    status: str
    """Status of the episode, or "unreadable"."""
    invalid: int
    """Number of turns without a valid action."""
    turns: int
    """Number of turns."""
    tokens: int
    """Number of completion tokens."""
    rewards: Mapping[str, float]
    """Agent to the sum of its rewards."""
    bytes: int = 0
    """Length of the episode's line."""
    words: tuple[RoleWords, ...] = ()
    """Texts of the last move of each role."""
    value: float | None = None
    """Value that the list is sorted by; None in a list by step."""


_COLUMNS = (
    "e.id, e.step, e.line, e.grouped, e.member, e.arena, e.type, e.task, e.status, e.invalid, "
    "e.turns, e.tokens, e.bytes, e.rewards"
)
_FIELDS = _COLUMNS.replace("e.", "").replace("grouped", "group").split(", ")[1:-1]


class EpisodeList:
    """The rows of episodes and groups of one run. The caller holds the index's lock."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base
        self._measures: dict[str, int] = {}

    # Filling -----------------------------------------------------------------------------------

    def forget(self, step: int) -> None:
        """Remove a step."""
        self._measures = {}  # they may be of a transaction that was rolled back
        ids = "(SELECT id FROM episodes WHERE step = ?)"
        self._base.execute(f"DELETE FROM roles WHERE episode IN {ids}", (step,))
        self._base.execute(f"DELETE FROM measured WHERE episode IN {ids}", (step,))
        self._base.execute("DELETE FROM episodes WHERE step = ?", (step,))

    def add_unreadable(self, step: int, line: int, start: int, size: int) -> None:
        """Add a damaged line as "unreadable", so that it does not seem to be missing."""
        self._base.execute(
            "INSERT INTO episodes VALUES (NULL, ?, ?, ?, ?, '', 0, '', '', '', 'unreadable', 0, 0, "
            "0, 0, '{}')",
            (step, line, start, size),
        )

    def add(self, record: Recorded, start: int, size: int) -> int:
        """Add an episode, whose line begins at byte `start`; return its number in the index."""
        episode = record.episode
        paid = pay_by_agent(episode)
        roles: dict[str, list[float]] = {}
        for turn in episode.turns:
            sums = roles.setdefault(turn.role, [0.0, 0])
            sums[0] += turn.reward
            sums[1] += turn.invalid
        row = {
            "invalid": sum(turn.invalid for turn in episode.turns),
            "turns": len(episode.turns),
            "tokens": sum(len(turn.completion_ids) for turn in episode.turns),
            "reward": sum(paid.values()),
        }
        cursor = self._base.execute(
            "INSERT INTO episodes VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.step,
                record.line,
                start,
                size,
                record.group,
                record.member,
                episode.arena,
                episode.task.type,
                episode.task.id,
                episode.status.value,
                *row.values(),
                json.dumps(paid),
            ),
        )
        number = int(cursor.lastrowid or 0)
        said = last_words(episode)
        self._base.executemany(
            "INSERT INTO roles VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(number, role, *sums, *said[role]) for role, sums in roles.items()],
        )
        verdicts = Counter(
            f"verdict/{turn.info['verdict']}" for turn in episode.turns if "verdict" in turn.info
        )
        by_role = {f"reward/{role}": sums[0] for role, sums in roles.items()}
        arena = {f"metric/{name}": value for name, value in episode.metrics.items()}
        values = chain(row.items(), by_role.items(), verdicts.items(), arena.items())
        finite = [(name, float(value)) for name, value in values if math.isfinite(value)]
        self._base.executemany(
            "INSERT OR IGNORE INTO measured VALUES (?, ?, ?)",
            [(number, self._measure(name), value) for name, value in finite[:MOST_MEASURES]],
        )
        return number

    def _measure(self, name: str) -> int:
        """Return the number of a name."""
        name = name[:LONGEST_NAME]
        if name not in self._measures:
            self._base.execute("INSERT OR IGNORE INTO measures VALUES (NULL, ?)", (name,))
            self._measures[name] = self._known(name) or 0
        return self._measures[name]

    def _known(self, name: str) -> int | None:
        row = self._base.execute("SELECT id FROM measures WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    # Reading -----------------------------------------------------------------------------------

    def find(
        self, asked: EpisodeFilter, order: SortOrder, page: int
    ) -> tuple[list[EpisodeRow], int]:
        """Return the episodes of a page (from 0) and the total number.

        A list that is sorted by a value has only the episodes with this value. Raises RunError if
        no episode has it.
        """
        where, values = condition(asked)
        if not order.by:
            total = self._one(f"SELECT count(*) FROM episodes e {where}", values)
            rows = self._base.execute(
                f"SELECT NULL, {_COLUMNS} FROM episodes e {where} ORDER BY step DESC, line "
                f"LIMIT {PAGE} OFFSET ?",
                (*values, page * PAGE),
            )
            return [self._row(row) for row in rows.fetchall()], total
        measure = self._known(order.by)
        if measure is None:
            known = self.orders()
            raise RunError(
                f"no episode has the value {order.by[:80]!r}; {nearest(order.by, known)}"
            )
        if not where:
            sql = "SELECT count(*) FROM measured WHERE measure = ?"
            total = self._one(sql, (measure,))
        else:
            sql = f"SELECT count(*) FROM episodes e JOIN measured m ON m.episode = e.id {where}"
            total = self._one(f"{sql} AND m.measure = ?", (*values, measure))
        # SQLite keeps the order of a CROSS JOIN: it reads the values in order until a page is full.
        rows = self._base.execute(
            f"SELECT m.value, {_COLUMNS} FROM measured m CROSS JOIN episodes e ON e.id = m.episode "
            f"{where or 'WHERE 1'} AND m.measure = ? ORDER BY m.value "
            f"{'DESC' if order.descending else 'ASC'}, m.episode LIMIT {PAGE} OFFSET ?",
            (*values, measure, page * PAGE),
        )
        return [self._row(row) for row in rows.fetchall()], total

    def orders(self) -> list[str]:
        """Return the names of the values that episodes can be sorted by."""
        found = self._base.execute(f"SELECT name FROM measures ORDER BY id LIMIT {MOST_NAMES}")
        return [row[0] for row in found]

    def roles(self) -> list[str]:
        """Return the roles that took turns."""
        found = self._base.execute("SELECT DISTINCT role FROM roles ORDER BY 1").fetchall()
        return [row[0] for row in found]

    def group(self, step: int, name: str) -> list[EpisodeRow]:
        """Return the episodes of a group."""
        rows = self._base.execute(
            f"SELECT NULL, {_COLUMNS} FROM episodes e WHERE step = ? AND grouped = ? "
            "ORDER BY member",
            (step, name),
        )
        return [self._row(row) for row in rows.fetchall()]

    def around(self, step: int, line: int) -> tuple[tuple[int, int] | None, ...]:
        """Return (step, line) of the previous and of the next episode in the list by step."""
        return (
            self._place(
                "(step = ? AND line < ?) OR step > ? ORDER BY step, line DESC", (step, line, step)
            ),
            self._place(
                "(step = ? AND line > ?) OR step < ? ORDER BY step DESC, line", (step, line, step)
            ),
        )

    def _place(self, condition: str, values: Sequence[int]) -> tuple[int, int] | None:
        sql = f"SELECT step, line FROM episodes WHERE {condition} LIMIT 1"
        row = self._base.execute(sql, tuple(values)).fetchone()
        return None if row is None else (int(row[0]), int(row[1]))

    def firsts(
        self, groups: Sequence[tuple[int, str]], asked: EpisodeFilter
    ) -> dict[tuple[int, str], EpisodeRow]:
        """Return the first episode that the filter selects in each of these (step, name) groups."""
        if not groups:
            return {}
        where, values = condition(asked)
        wanted = ", ".join(["(?, ?)"] * len(groups))
        found = self._base.execute(
            f"SELECT NULL, {_COLUMNS} FROM episodes e {where or 'WHERE 1'} AND (e.step, e.grouped) "
            f"IN (VALUES {wanted}) ORDER BY e.member DESC",
            (*values, *(each for group in groups for each in group)),
        )
        rows = [self._row(row) for row in found.fetchall()]
        return {(row.step, row.group): row for row in rows}

    # Inside ------------------------------------------------------------------------------------

    def _row(self, values: Sequence[Any]) -> EpisodeRow:
        value, number, *plain, rewards = values
        return EpisodeRow(
            **dict(zip(_FIELDS, plain, strict=True)),
            rewards=json.loads(rewards),
            words=self.words_of(number),
            value=value,
        )

    def words_of(self, number: int) -> tuple[RoleWords, ...]:
        """Return the texts of an episode, by its number in the index."""
        found = self._base.execute(
            "SELECT role, shown, said, valid FROM roles WHERE episode = ? ORDER BY rowid", (number,)
        )
        return tuple(
            RoleWords(role=role, shown=shown, said=said, valid=bool(valid))
            for role, shown, said, valid in found
        )

    def _one(self, sql: str, values: Sequence[Any]) -> int:
        return int(self._base.execute(sql, tuple(values)).fetchone()[0])
