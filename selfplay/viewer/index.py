"""An index of a run's recorded episodes, so that a page reads only the episodes that it shows.

The index is a SQLite file outside the run folder, because the run may be on a read-only disk or in
progress. It is built step by step on demand, and a step whose file changed, as after a resume, is
indexed again. The module also has the filter and the rows of the lists of episodes, and the links
between the pages of a list.
"""

import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from selfplay.errors import RunError
from selfplay.run.record_reader import Recorded, decode, file_of, record_of, recorded_steps
from selfplay.run.untrusted import open_regular
from selfplay.study.stats.usage import usage_of
from selfplay.types import Episode
from selfplay.viewer.usage_index import NAMES, TABLES, CellKey, UsageIndex
from selfplay.viewer.usage_index import condition as cell_condition


@dataclass(frozen=True, kw_only=True)
class EpisodeFilter:
    """A filter of episodes; an empty field selects all of them."""

    role: str = ""
    """Role that took a turn; `outcome` and `invalid` are then about this role's turns."""
    status: str = ""
    """Status of the episode: finished, truncated, failed or unreadable."""
    outcome: str = ""
    """Outcome: "paid" (the sum of the rewards is above 0) or "unpaid"."""
    invalid: bool = False
    """True selects episodes with an invalid action."""
    text: str = ""
    """Words that all occur in the prompts, the completions or the task id."""
    step: int | None = None
    """Step that played the episode."""
    cell: CellKey | None = None
    """Cell of a table of words or moves at this step."""


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


COLUMNS = "step, line, grouped, member, arena, type, task, status, invalid, turns, tokens, rewards"


def row_of(values: Sequence[Any]) -> EpisodeRow:
    """Convert the values of `COLUMNS` to a row."""
    *plain, rewards = values
    names = COLUMNS.replace("grouped", "group").split(", ")[:-1]
    return EpisodeRow(**dict(zip(names, plain, strict=True)), rewards=json.loads(rewards))


def condition(asked: EpisodeFilter) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL condition of a filter and its values."""
    conditions: list[str] = []
    values: list[Any] = []
    if asked.cell is not None:
        inner, found = cell_condition(asked.step or 0, asked.cell)
        conditions.append(inner)
        values += found
    elif asked.step is not None:
        conditions.append("e.step = ?")
        values.append(asked.step)
    if asked.status:
        conditions.append("e.status = ?")
        values.append(asked.status)
    own = []
    if asked.outcome:
        own.append("{}reward > 0" if asked.outcome == "paid" else "{}reward <= 0")
    if asked.invalid:
        own.append("{}invalid > 0")
    if asked.role:
        inner = " AND ".join(["r.role = ?", *(condition.format("r.") for condition in own)])
        conditions.append(f"e.id IN (SELECT r.episode FROM roles r WHERE {inner})")
        values.append(asked.role)
    else:
        conditions += [condition.format("e.") for condition in own]
    if asked.text.strip():
        conditions.append("e.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        # Each word is quoted, because the text must not act as a query language.
        quoted = (word.replace('"', '""') for word in asked.text.replace("\0", " ").split())
        values.append(" ".join(f'"{word}"' for word in quoted))
    return (f"WHERE {' AND '.join(conditions)}" if conditions else ""), tuple(values)


PAGE = 50
"""Number of entries of a page."""


def links(
    page: int,
    total: int,
    query: Mapping[str, Any] | Sequence[tuple[str, Any]],
    *,
    size: int = PAGE,
) -> list[tuple[int, str]]:
    """Return (page, query) of the pages, from 0, that get a link: the first, last and near ones.

    Args:
        page: The current page.
        total: Number of entries of the list.
        query: Other fields of the query.
        size: Number of entries of a page.
    """
    pages = -(-total // size)
    near = {0, *range(max(0, page - 3), min(pages, page + 4)), max(0, pages - 1)}
    fields = list(query.items() if isinstance(query, Mapping) else query)
    return [(number, urlencode([*fields, ("page", number)])) for number in sorted(near)]


VERSION = 2
"""Version of the tables; an index of another version is rebuilt."""
LONGEST_SEARCHED = 100_000
"""Largest number of an episode's characters in the search index."""
PATIENCE = 60.0
"""Largest number of seconds to wait for another viewer that writes the same file."""

_TABLES = """
CREATE TABLE steps (step INTEGER PRIMARY KEY, stamp TEXT);
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER, line INTEGER, start INTEGER, bytes INTEGER,
  grouped TEXT, member INTEGER, arena TEXT, type TEXT, task TEXT, status TEXT, invalid INTEGER,
  turns INTEGER, tokens INTEGER, reward REAL, rewards TEXT
);
CREATE INDEX by_step ON episodes (step, line);
CREATE INDEX by_group ON episodes (step, grouped);
CREATE TABLE roles (episode INTEGER, role TEXT, reward REAL, invalid INTEGER);
CREATE INDEX by_role ON roles (role, episode);
CREATE INDEX of_episode ON roles (episode);
CREATE VIRTUAL TABLE words USING fts5(text, content='');
"""


class EpisodeIndex:
    """The index of one run. The pages of episodes read it."""

    def __init__(self, run: Path, folder: Path) -> None:
        """`folder`: folder of the index files; it is created."""
        self.run = run
        self.lock = threading.RLock()  # requests run on several threads
        self._reader: threading.Thread | None = None
        _private_folder(folder)
        name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:24]
        # Another viewer may have the same file open, so every write is one transaction.
        file = folder / f"{name}.sqlite"
        _private_file(file)
        self._base = sqlite3.connect(
            file,
            check_same_thread=False,
            timeout=PATIENCE,
            isolation_level=None,
        )
        self.usage = UsageIndex(self._base)
        self._log_ahead()
        # The index can be rebuilt, so it need not reach the disk before the next step is read.
        self._base.execute("PRAGMA synchronous = NORMAL")
        with self._writing():
            if self._base.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                self._clear()

    def _log_ahead(self) -> None:
        """Enable the write-ahead log, so that others can read during a write.

        SQLite's own timeout does not apply to this statement, so it is repeated.
        """
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._base.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def close(self) -> None:
        """Close the index file."""
        self._base.close()

    def update(self, seconds: float, *, first: int | None = None) -> int:
        """Index new and changed steps for about `seconds`; return the number of steps left.

        The step `first` is indexed first, then the newest steps.
        """
        present = recorded_steps(self.run)
        with self.lock:
            known = dict(self._base.execute("SELECT step, stamp FROM steps").fetchall())
            for step in set(known) - set(present):
                with self._writing():
                    self._forget(step)
        due = [step for step in present if known.get(step) != self._stamp(step)]
        end = time.monotonic() + seconds
        due.sort(key=lambda step: (step != first, -step))
        left = len(due)
        for step in due if not self._read_behind() else [each for each in due if each == first]:
            if left < len(due) and time.monotonic() > end:
                break
            with self.lock:  # for one step only, so that pages are rendered in between
                self._read(step)
            left -= 1
        return left

    def _read_behind(self) -> bool:
        """Return True if the background thread is indexing; a page does not wait for it."""
        reader = self._reader
        return reader is not None and reader.is_alive() and reader != threading.current_thread()

    def update_behind(self) -> None:
        """Index the remaining steps in a background thread."""
        if self._reader is None or not self._reader.is_alive():
            self._reader = threading.Thread(target=self.update, args=(math.inf,), daemon=True)
            self._reader.start()

    def find(self, asked: EpisodeFilter, page: int) -> tuple[list[EpisodeRow], int]:
        """Return the episodes of a page (from 0), the newest step first, and the total number."""
        where, values = condition(asked)
        with self.lock:
            count = self._base.execute(f"SELECT count(*) FROM episodes e {where}", values)
            total = int(count.fetchone()[0])
            rows = self._base.execute(
                f"SELECT {COLUMNS} FROM episodes e {where} ORDER BY step DESC, line "
                f"LIMIT {PAGE} OFFSET ?",
                (*values, page * PAGE),
            )
            return [row_of(row) for row in rows], total

    def group(self, step: int, name: str) -> list[EpisodeRow]:
        """Return the episodes of a group."""
        with self.lock:
            rows = self._base.execute(
                f"SELECT {COLUMNS} FROM episodes e WHERE step = ? AND grouped = ? ORDER BY member",
                (step, name),
            )
            return [row_of(row) for row in rows]

    def roles(self) -> list[str]:
        """Return the roles that took turns."""
        with self.lock:
            found = self._base.execute("SELECT DISTINCT role FROM roles ORDER BY 1").fetchall()
        return [row[0] for row in found]

    def read(self, step: int, line: int) -> Recorded:
        """Read an episode from the run folder; raise RunError if it is no longer there."""
        with self.lock:
            found = self._base.execute(
                "SELECT start, bytes FROM episodes WHERE step = ? AND line = ?", (step, line)
            ).fetchone()
        path = file_of(self.run, step)
        if found is None:
            raise RunError(f"no episode {line} of step {step} in the index of {self.run}")
        try:
            with open_regular(path, root=self.run) as file:
                file.seek(found[0])
                return record_of(decode(file.read(found[1])), step=step, line=line, path=path)
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path}, line {line}: changed since it was indexed ({error})"
            ) from error

    # Filling -----------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run a transaction with an exclusive write lock."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    def _clear(self) -> None:
        for name in ("steps", "episodes", "roles", "words", *NAMES):
            self._base.execute(f"DROP TABLE IF EXISTS {name}")
        for statement in (_TABLES + TABLES).split(";\n"):
            self._base.execute(statement)
        self._base.execute(f"PRAGMA user_version = {VERSION}")

    def _stamp(self, step: int) -> str:
        found = file_of(self.run, step).stat()
        return f"{found.st_size}-{found.st_mtime_ns}"

    def _forget(self, step: int) -> None:
        """Remove a step. Its words stay in the search index, under ids that are never reused."""
        ids = "(SELECT id FROM episodes WHERE step = ?)"
        self._base.execute(f"DELETE FROM roles WHERE episode IN {ids}", (step,))
        self._base.execute("DELETE FROM episodes WHERE step = ?", (step,))
        self._base.execute("DELETE FROM steps WHERE step = ?", (step,))
        self.usage.forget(step)

    def _read(self, step: int) -> None:
        """Index a step's file; an incomplete last line is left out."""
        stamp, start = self._stamp(step), 0
        path = file_of(self.run, step)
        with open_regular(path, root=self.run) as file, self._writing():
            self._forget(step)
            episodes: list[tuple[int, Episode]] = []
            for line, data in enumerate(file, 1):
                try:
                    record = record_of(decode(data), step=step, line=line, path=path)
                    self._add(record, start, data)
                    episodes.append((line, record.episode))
                except (RunError, ValueError):
                    if data.endswith(b"\n"):
                        self._note_broken(step, line, start, len(data))
                start += len(data)
            self.usage.add(step, usage_of(episodes))
            self._base.execute("INSERT INTO steps VALUES (?, ?)", (step, stamp))

    def _note_broken(self, step: int, line: int, start: int, size: int) -> None:
        """Add a damaged line as "unreadable", so that it does not seem to be missing."""
        self._base.execute(
            "INSERT INTO episodes VALUES (NULL, ?, ?, ?, ?, '', 0, '', '', '', 'unreadable', 0, 0, "
            "0, 0, '{}')",
            (step, line, start, size),
        )

    def _add(self, record: Recorded, start: int, data: bytes) -> None:
        episode = record.episode
        paid: dict[str, float] = {}
        roles: dict[str, list[float]] = {}
        for turn in episode.turns:
            paid[turn.agent] = paid.get(turn.agent, 0.0) + turn.reward
            sums = roles.setdefault(turn.role, [0.0, 0])
            sums[0] += turn.reward
            sums[1] += turn.invalid
        cursor = self._base.execute(
            "INSERT INTO episodes VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.step,
                record.line,
                start,
                len(data),
                record.group,
                record.member,
                episode.arena,
                episode.task.type,
                episode.task.id,
                episode.status.value,
                sum(turn.invalid for turn in episode.turns),
                len(episode.turns),
                sum(len(turn.completion_ids) for turn in episode.turns),
                sum(paid.values()),
                json.dumps(paid),
            ),
        )
        number = cursor.lastrowid
        self._base.executemany(
            "INSERT INTO roles VALUES (?, ?, ?, ?)",
            [(number, role, reward, invalid) for role, (reward, invalid) in roles.items()],
        )
        texts = [turn.text for turn in episode.turns]
        texts += [str(m.get("content", "")) for turn in episode.turns for m in turn.messages]
        text = "\n".join([episode.task.id, episode.error, *texts])[:LONGEST_SEARCHED]
        self._base.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, text))


def _private_folder(path: Path) -> None:
    """Create a folder that only the user can read, because an index contains the agents' texts."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(PermissionError):  # another user made the folder
        path.chmod(0o700)


def _private_file(path: Path) -> None:
    """Create a file that only the user can read. SQLite gives its extra files the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    for each in (path, *(path.with_name(path.name + ending) for ending in ("-wal", "-shm"))):
        with suppress(FileNotFoundError):
            each.chmod(0o600)  # an older version may have made it with another mode
