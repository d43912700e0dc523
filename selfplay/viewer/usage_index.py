"""The part of a run's index that counts words and moves: tables by agent, kind and step.

`EpisodeIndex` fills it while it reads a step; the pages of language and behaviour read it. A page
reads the cells of at most 60 steps, and one row per step for its curves, so that its cost does not
grow with the number of episodes. The view of a cell is the text that the agent was shown, and the
action is its word or move (see `selfplay.study.stats.usage`).
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from selfplay.study.stats.usage import (
    FEWEST,
    SEEN,
    Kind,
    UsageSummary,
    UsageTable,
    Word,
    shares_of,
    summary_of,
)
from selfplay.viewer.index_files import DamagedIndex

TABLES = """
CREATE TABLE texts (id INTEGER PRIMARY KEY, digest TEXT UNIQUE, shown TEXT);
CREATE TABLE usage (
  agent TEXT, kind TEXT, step INTEGER, uses INTEGER, views INTEGER, actions INTEGER,
  entropy REAL, information REAL, plug_in REAL, chance REAL, PRIMARY KEY (agent, kind, step)
) WITHOUT ROWID;
CREATE INDEX usage_by_step ON usage (step);
CREATE TABLE cells (
  agent TEXT, kind TEXT, step INTEGER, view INTEGER, action INTEGER, times INTEGER, lines TEXT,
  PRIMARY KEY (agent, kind, step, view, action)
) WITHOUT ROWID;
CREATE TABLE vocabulary (
  agent TEXT, kind TEXT, action INTEGER, first INTEGER, last INTEGER, times INTEGER, peak REAL,
  peak_step INTEGER, PRIMARY KEY (agent, kind, action)
) WITHOUT ROWID;
CREATE TABLE stale (agent TEXT, kind TEXT, PRIMARY KEY (agent, kind)) WITHOUT ROWID;
CREATE TABLE legal (view INTEGER PRIMARY KEY, moves TEXT);
"""
NAMES = ("texts", "usage", "cells", "vocabulary", "stale", "legal")
"""Names of the tables."""
MOST_CELLS = 256
"""Number of the most frequent cells that are kept of one table."""
HEAD, TAIL = 400, 1_100
"""Number of characters at the start and the end of a text that are kept."""
INVALID = 0
"""Id of an action that is not valid."""


def digest_of(text: str) -> str:
    """Return the digest that names a text in links."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


@dataclass(frozen=True, kw_only=True)
class CellKey:
    """One cell of a table, or a whole row of it, as the address of a link has it."""

    agent: str
    """Agent of the table."""
    kind: str
    """Kind of the table."""
    view: str
    """Digest of the view."""
    action: str = ""
    """Digest of the action; "-" for an invalid one, empty for all actions."""


def condition(step: int, cell: CellKey) -> tuple[str, tuple[object, ...]]:
    """Return the SQL condition for the episodes of a cell, and its values."""
    values: list[object] = [cell.agent, cell.kind, step, cell.view]
    inner = (
        "SELECT each.value FROM cells c, json_each(c.lines) each WHERE c.agent = ? AND c.kind = ? "
        "AND c.step = ? AND c.view = (SELECT id FROM texts WHERE digest = ?)"
    )
    if cell.action == "-":
        inner += f" AND c.action = {INVALID}"
    elif cell.action:
        inner += " AND c.action = (SELECT id FROM texts WHERE digest = ?)"
        values.append(cell.action)
    return f"e.step = ? AND e.line IN ({inner})", (step, *values)


@dataclass(frozen=True, kw_only=True)
class StoredText:
    """A view or an action of a table."""

    id: int
    """Number in the index; `INVALID` for an invalid action."""
    digest: str
    """Digest of the whole text, which names it in links; "-" for an invalid action."""
    shown: str
    """The text; a long one without its middle."""


class UsageIndex:
    """The tables of words and moves in the index of one run. The caller holds the index's lock."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base

    # Filling -----------------------------------------------------------------------------------

    def forget(self, step: int) -> None:
        """Remove a step."""
        found = self._base.execute("SELECT agent, kind FROM usage WHERE step = ?", (step,))
        for agent, kind in found.fetchall():
            key = (agent, kind, step)
            self._base.execute("DELETE FROM cells WHERE agent = ? AND kind = ? AND step = ?", key)
            self._base.execute("INSERT OR IGNORE INTO stale VALUES (?, ?)", (agent, kind))
        self._base.execute("DELETE FROM usage WHERE step = ?", (step,))

    def add(self, step: int, tables: Mapping[tuple[str, Kind], UsageTable]) -> None:
        """Store the tables of a step."""
        ids: dict[str, int] = {}
        for (agent, kind), table in tables.items():
            summary = summary_of(table, kind)
            self._base.execute(
                "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (agent, kind, step, *vars(summary).values()),
            )
            kept = sorted(table.lines.items(), key=lambda cell: -len(cell[1]))[:MOST_CELLS]
            self._base.executemany(
                "INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        *(agent, kind, step, self._id(view, ids)),
                        INVALID if action is None else self._id(action, ids),
                        len(lines),
                        json.dumps(list(dict.fromkeys(lines)), separators=(",", ":")),
                    )
                    for (view, action), lines in kept
                ],
            )
            self._base.executemany(
                "INSERT OR IGNORE INTO legal VALUES (?, ?)",
                [
                    (ids[view], json.dumps(moves))
                    for view, moves in table.legal.items()
                    if view in ids
                ],
            )
            for action, (times, share) in list(shares_of(table).items())[:MOST_CELLS]:
                self._count(agent, kind, self._id(action, ids), step, times, share)

    def _id(self, text: str, ids: dict[str, int]) -> int:
        if text not in ids:
            digest = digest_of(text)
            found = self._base.execute("SELECT id FROM texts WHERE digest = ?", (digest,))
            row = found.fetchone()
            if row is None:
                whole = len(text) <= HEAD + TAIL
                kept = text if whole else f"{text[:HEAD]} [...] {text[-TAIL:]}"
                row = (
                    self._base.execute(
                        "INSERT INTO texts VALUES (NULL, ?, ?)", (digest, kept)
                    ).lastrowid,
                )
            ids[text] = row[0]
        return ids[text]

    def _count(
        self, agent: str, kind: str, action: int, step: int, times: int, share: float
    ) -> None:
        self._base.execute(
            "INSERT INTO vocabulary VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "first = min(first, excluded.first), last = max(last, excluded.last), "
            "times = times + excluded.times, "
            "peak_step = CASE WHEN excluded.peak > peak OR (excluded.peak = peak AND "
            "excluded.peak_step < peak_step) THEN excluded.peak_step ELSE peak_step END, "
            "peak = max(peak, excluded.peak)",
            (agent, kind, action, step, step, times, share, step),
        )

    def _refresh(self, agent: str, kind: str) -> None:
        """Count a vocabulary again after one of its steps was removed."""
        found = self._base.execute(
            "SELECT 1 FROM stale WHERE agent = ? AND kind = ?", (agent, kind)
        ).fetchone()
        if found is None:
            return
        key = (agent, kind)
        self._base.execute("DELETE FROM vocabulary WHERE agent = ? AND kind = ?", key)
        rows = self._base.execute(
            "SELECT c.action, c.step, sum(c.times), sum(c.times) * 1.0 / u.uses FROM cells c JOIN "
            "usage u USING (agent, kind, step) WHERE c.agent = ? AND c.kind = ? AND c.action > 0 "
            "GROUP BY c.step, c.action",
            key,
        )
        for action, step, times, share in rows.fetchall():
            self._count(agent, kind, action, step, times, share)
        self._base.execute("DELETE FROM stale WHERE agent = ? AND kind = ?", key)

    # Reading -----------------------------------------------------------------------------------

    def tables(self, kinds: Sequence[Kind]) -> list[tuple[str, Kind]]:
        """Return (agent, kind) of the tables of these kinds, in the order of the kinds."""
        found = self._base.execute("SELECT DISTINCT agent, kind FROM usage ORDER BY agent")
        pairs = [(agent, kind) for agent, kind in found.fetchall() if kind in kinds]
        return sorted(pairs, key=lambda pair: (kinds.index(pair[1]), pair[0]))

    def uses(self, agent: str, kind: str) -> int:
        """Return the number of uses of a table at all steps."""
        found = self._base.execute(
            "SELECT sum(uses) FROM usage WHERE agent = ? AND kind = ?", (agent, kind)
        )
        return int(found.fetchone()[0] or 0)

    def summaries(self, agent: str, kind: str) -> dict[int, UsageSummary]:
        """Return the summary of a table by step, ascending."""
        found = self._base.execute(
            "SELECT step, uses, views, actions, entropy, information, plug_in, chance FROM usage "
            "WHERE agent = ? AND kind = ? ORDER BY step",
            (agent, kind),
        )
        return {
            step: UsageSummary(
                uses=uses,
                views=views,
                actions=actions,
                entropy=entropy,
                information=_number(information),
                plug_in=_number(plug_in),
                chance=_number(chance),
            )
            for step, uses, views, actions, entropy, information, plug_in, chance in found
        }

    def cells(
        self, agent: str, kind: str, steps: Iterable[int]
    ) -> dict[int, dict[tuple[int, int], int]]:
        """Return step to (view, action) to the number of uses."""
        return {
            step: {
                (view, action): times
                for view, action, times in self._base.execute(
                    "SELECT view, action, times FROM cells WHERE agent = ? AND kind = ? AND "
                    "step = ?",
                    (agent, kind, step),
                )
            }
            for step in steps
        }

    def texts(self, ids: Iterable[int]) -> dict[int, StoredText]:
        """Return texts by id; raise DamagedIndex if the index lacks one."""
        found = {INVALID: StoredText(id=INVALID, digest="-", shown="")}
        for number in set(ids) - {INVALID}:
            row = self._base.execute(
                "SELECT digest, shown FROM texts WHERE id = ?", (number,)
            ).fetchone()
            if row is None:
                raise DamagedIndex(f"the index of this run is damaged: it has no text {number}")
            found[number] = StoredText(id=number, digest=row[0], shown=row[1])
        return found

    def text_of(self, digest: str) -> str:
        """Return the text with a digest; empty if there is none."""
        row = self._base.execute("SELECT shown FROM texts WHERE digest = ?", (digest,)).fetchone()
        return "" if row is None else str(row[0])

    def legal(self, view: int) -> list[str]:
        """Return the legal moves of a view; empty if none are listed."""
        row = self._base.execute("SELECT moves FROM legal WHERE view = ?", (view,)).fetchone()
        return [] if row is None else cast("list[str]", json.loads(row[0]))

    def vocabulary(self, agent: str, kind: str) -> list[Word]:
        """Return the history of every action of a table that is frequent enough to be listed as new
        or as nearly gone."""
        self._refresh(agent, kind)
        found = self._base.execute(
            "SELECT t.shown, first, last, times, peak, peak_step FROM vocabulary v JOIN texts t "
            "ON t.id = v.action WHERE agent = ? AND kind = ? AND peak >= ? AND times >= ?",
            (agent, kind, SEEN, FEWEST),
        )
        return [
            Word(text=text, first=first, last=last, times=times, peak=peak, peak_step=peak_step)
            for text, first, last, times, peak, peak_step in found
        ]


def _number(value: float | None) -> float:
    """Return a stored number; SQLite stores NaN as NULL."""
    return math.nan if value is None else value
