"""An index of a run's recorded episodes, so that a page reads only the episodes that it shows.

The index is a SQLite file outside the run folder, because the run may be on a read-only disk or in
progress. It is built step by step on demand, and a step whose file changed, as after a resume, is
indexed again. A damaged index is replaced by an empty one, because the records have everything.
`EpisodeList` and `UsageIndex` own the tables that pages read.
"""

import hashlib
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from selfplay.errors import RunError
from selfplay.run.record_reader import Recorded, decode, file_of, record_of, recorded_steps
from selfplay.run.run_folder import EPISODES
from selfplay.run.untrusted import open_regular
from selfplay.study.stats.usage import usage_of
from selfplay.types import Episode
from selfplay.viewer import episode_list, group_list, usage_index
from selfplay.viewer.episode_list import EpisodeList
from selfplay.viewer.group_list import GroupList
from selfplay.viewer.index_files import IndexFiles, is_damaged
from selfplay.viewer.usage_index import UsageIndex

VERSION = 7
"""Version of the tables; an index of another version is rebuilt."""
NEWEST = 200
"""Number of newest steps whose files are looked at for each page, even if no file came or went."""
SETTLED = 1.0
"""Age in seconds from which on the modification time of the folder of episodes is trusted: a later
change of the folder certainly has another time."""
LONGEST_SEARCHED = 100_000
"""Largest number of an episode's characters, said or shown, in the search index."""
PATIENCE = 60.0
"""Largest number of seconds to wait for another viewer that writes the same file."""

_TABLES = """
CREATE TABLE steps (step INTEGER PRIMARY KEY, stamp TEXT);
CREATE VIRTUAL TABLE words USING fts5(said, shown, content='');
"""


class EpisodeIndex:
    """The index of one run. The pages of episodes read it."""

    def __init__(self, run: Path, folder: Path) -> None:
        """`folder`: folder of the index files; it is created."""
        self.run = run
        self.lock = threading.RLock()  # requests run on several threads
        self._reader: threading.Thread | None = None
        self._complete = ""
        """Stamp of the folder of episodes when all of its steps were indexed; empty before."""
        name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:24]
        self._files = IndexFiles(folder, name)
        self._open()

    def _open(self) -> None:
        """Open the newest index file; if it is damaged, replace it and open the new one."""
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            self._discard()
            self._connect()

    def _discard(self) -> None:
        """Close the damaged file and replace it by an empty one."""
        with suppress(sqlite3.Error):
            self.base.close()
        self._files.replace(self._file)

    def _connect(self) -> None:
        # Another viewer may have the same file open, so every write is one transaction.
        self._file = self._files.newest()
        self.base = sqlite3.connect(
            self._file,
            check_same_thread=False,
            timeout=PATIENCE,
            isolation_level=None,
        )
        self.usage = UsageIndex(self.base)
        self.list = EpisodeList(self.base)
        self.groups = GroupList(self.base)
        self._log_ahead()
        # The index can be rebuilt, so it need not reach the disk before the next step is read.
        self.base.execute("PRAGMA synchronous = NORMAL")
        with self._writing():
            if self.base.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                self._clear()

    def _log_ahead(self) -> None:
        """Enable the write-ahead log, so that others can read during a write.

        SQLite's own timeout does not apply to this statement, so it is repeated.
        """
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.base.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def close(self) -> None:
        """Close the index file."""
        self.base.close()

    def rebuild(self) -> None:
        """Replace a damaged index by an empty one, which `update` fills from the records."""
        with self.lock:
            self._complete = ""
            self._discard()
            self._open()

    def update(self, seconds: float, *, first: int | None = None) -> int:
        """Index new and changed steps for about `seconds`; return the number of steps left.

        The step `first` is indexed first, then the newest steps.
        """
        stamp = self._folder_stamp()
        if stamp and stamp == self._complete and not self._changed(first):
            return 0
        present = recorded_steps(self.run)
        with self.lock:
            base = self.base
            known = dict(self.base.execute("SELECT step, stamp FROM steps").fetchall())
            for step in set(known) - set(present):
                with self._writing():
                    self._forget(step)
        due = [step for step in present if known.get(step) != self._stamp(step)]
        end = time.monotonic() + seconds
        due.sort(key=lambda step: (step != first, -step))
        left = len(due)
        if self._read_in_background():
            due = [step for step in due if step == first]
        for step in due:
            if left < len(due) and time.monotonic() > end:
                break
            with self.lock:  # for one step only, so that pages are rendered in between
                if self.base is not base:  # rebuilt by another thread, so that no step is left out
                    return len(present)
                self._read(step)
            left -= 1
        with self.lock:
            self._complete = "" if left or self.base is not base else stamp
        return left

    def _folder_stamp(self) -> str:
        """Return a text that changes when a file of episodes comes, goes or is replaced.

        Empty if the folder is missing, or changed so recently that another change may look alike.
        """
        try:
            found = (self.run / EPISODES).stat()
        except OSError:
            return ""
        recent = abs(time.time() - found.st_mtime) < SETTLED
        return "" if recent else f"{found.st_ino}-{found.st_mtime_ns}"

    def _changed(self, first: int | None) -> bool:
        """Return True if the file of `first`, or of one of the newest steps, was written in place.

        All files of 20,000 steps cost half a second, so that no page looks at all of them.
        """
        with self.lock:
            known = self.base.execute(
                "SELECT step, stamp FROM (SELECT * FROM steps ORDER BY step DESC LIMIT ?) "
                "UNION SELECT step, stamp FROM steps WHERE step = ?",
                (NEWEST, first),
            ).fetchall()
        try:
            return any(stamp != self._stamp(step) for step, stamp in known)
        except OSError:
            return True

    def _read_in_background(self) -> bool:
        """Return True if the background thread is indexing; a page does not wait for it."""
        reader = self._reader
        return reader is not None and reader.is_alive() and reader != threading.current_thread()

    def update_in_background(self) -> None:
        """Index the remaining steps in a background thread."""
        if self._reader is None or not self._reader.is_alive():
            self._reader = threading.Thread(target=self._update_all, daemon=True)
            self._reader.start()

    def _update_all(self) -> None:
        try:
            self.update(math.inf)
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):  # the next page finds the damage and rebuilds the index
                raise

    def read(self, step: int, line: int) -> Recorded:
        """Read an episode from the run folder; raise RunError if it is no longer there."""
        with self.lock:
            found = self.base.execute(
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
        self.base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.base.in_transaction:  # after some errors SQLite has ended it
                self.base.execute("ROLLBACK")
            raise
        self.base.execute("COMMIT")

    def _clear(self) -> None:
        for name in ("steps", "words", *episode_list.NAMES, *group_list.NAMES, *usage_index.NAMES):
            self.base.execute(f"DROP TABLE IF EXISTS {name}")
        for statement in (
            _TABLES + episode_list.TABLES + group_list.TABLES + usage_index.TABLES
        ).split(";\n"):
            self.base.execute(statement)
        self.base.execute(f"PRAGMA user_version = {VERSION}")

    def _stamp(self, step: int) -> str:
        found = file_of(self.run, step).stat()
        return f"{found.st_size}-{found.st_mtime_ns}"

    def _forget(self, step: int) -> None:
        """Remove a step. Its words stay in the search index, under ids that are never reused."""
        self.base.execute("DELETE FROM steps WHERE step = ?", (step,))
        self.list.forget(step)
        self.groups.forget(step)
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
                    self._add(record, start, len(data))
                    episodes.append((line, record.episode))
                except (RunError, ValueError):
                    if data.endswith(b"\n"):
                        self.list.add_unreadable(step, line, start, len(data))
                start += len(data)
            self.groups.add(step)
            self.usage.add(step, usage_of(episodes))
            self.base.execute("INSERT INTO steps VALUES (?, ?)", (step, stamp))

    def _add(self, record: Recorded, start: int, size: int) -> None:
        episode = record.episode
        number = self.list.add(record, start, size)
        said = "\n".join(turn.text for turn in episode.turns)[:LONGEST_SEARCHED]
        contents = [str(m.get("content", "")) for turn in episode.turns for m in turn.messages]
        shown = "\n".join([episode.task.id, episode.error, *contents])[:LONGEST_SEARCHED]
        self.base.execute(
            "INSERT INTO words (rowid, said, shown) VALUES (?, ?, ?)", (number, said, shown)
        )
