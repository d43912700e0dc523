"""The most frequent answers of each role in the episodes of a list, as fractions."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from selfplay.viewer.episode_filter import EpisodeFilter, condition

SUMMED = 20_000
"""Number of the newest episodes whose answers are counted."""
FEWEST = 3
"""Number of times that a text must have been shown for its answers to be counted separately."""
ANSWERS = 4
"""Largest number of listed answers of one role."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A frequent answer of one role."""

    role: str
    """The role."""
    shown: str | None
    """Text that was answered; None: the answers to all texts are counted."""
    said: str | None
    """The answer; None: a completion without a valid action."""
    times: int
    """Number of episodes with this answer."""
    among: int
    """Number of episodes in which the role answered this text, or any if `shown` is None."""

    @property
    def fraction(self) -> float:
        """Fraction of the answers."""
        return self.times / self.among


def newest_answers(base: sqlite3.Connection, asked: EpisodeFilter) -> list[Answer]:
    """Return the most frequent answers of each role in the newest `SUMMED` found episodes."""
    where, values = condition(asked)
    newest = f"SELECT e.id FROM episodes e {where} ORDER BY step DESC, line LIMIT {SUMMED}"
    return counted(base, newest, values, by_view=True)


def counted(
    base: sqlite3.Connection, episodes: str, values: Sequence[Any], *, by_view: bool
) -> list[Answer]:
    """Return the most frequent answers of each role in the episodes that an SQL query selects.

    Args:
        base: The index.
        episodes: Query for the numbers of episodes.
        values: Values of the query.
        by_view: True counts the answers to each of the most frequently shown texts separately, if
            these texts occur often enough.
    """
    found = base.execute(
        "SELECT role, shown, CASE WHEN valid THEN said END, count(*) FROM roles WHERE episode "
        f"IN ({episodes}) GROUP BY 1, 2, 3 ORDER BY 1",
        tuple(values),
    ).fetchall()
    answers: list[Answer] = []
    for role, rows in groupby(found, key=lambda row: row[0]):
        counts = {(shown, said): times for _, shown, said, times in rows}
        views: Counter[str] = Counter()
        for (shown, _), times in counts.items():
            views[shown] += times
        often = [shown for shown, times in views.most_common(ANSWERS) if times >= FEWEST]
        if by_view and len(often) == min(len(views), ANSWERS) and any(often):
            for shown in often:
                own = Counter({s: n for (view, s), n in counts.items() if view == shown})
                ((said, times),) = own.most_common(1)
                answers.append(
                    Answer(role=role, shown=shown, said=said, times=times, among=views[shown])
                )
            continue
        every: Counter[str | None] = Counter()
        for (_, said), times in counts.items():
            every[said] += times
        answers += [
            Answer(role=role, shown=None, said=said, times=times, among=views.total())
            for said, times in every.most_common(ANSWERS)
        ]
    return answers
