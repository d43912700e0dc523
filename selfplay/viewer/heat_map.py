"""Heat map of words or moves by view, over the recorded steps of a run.

A view is the text that an agent was shown before its move (see `selfplay.study.stats.usage`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from selfplay.study.stats.text import shared_words
from selfplay.study.stats.usage import SEEN, WHOLE, Kind, frames
from selfplay.viewer.excerpts import line_of
from selfplay.viewer.index import EpisodeIndex
from selfplay.viewer.usage_index import INVALID, StoredText

MOST_VIEWS = 40
"""Largest number of rows of a heat map."""
MOST_ACTIONS = 16
"""Largest number of columns of a heat map."""
SHORT = 40
"""Number of characters up to which the labels of all rows are whole texts."""
SHADES = 8
"""Number of shades of a cell."""


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """One cell of a heat map at one step."""

    times: int
    """Number of uses."""
    share: float
    """Fraction of the uses with this view."""
    link: str
    """Query of the episodes of the cell, without the step."""

    @property
    def shade(self) -> int:
        """Number of the shade: 0 for a cell without a use."""
        return shade_of(self.share)


def shade_of(share: float) -> int:
    """Return the shade of a fraction: 0 for 0, else 1 to `SHADES`."""
    return 0 if share <= 0 else min(SHADES, 1 + int(SHADES * share))


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Uses of actions by view at several steps. `heat_map` makes it; page and JSON show it."""

    agent: str
    """Name of the agent."""
    kind: Kind
    """Kind of the table, such as "move" or "message words"."""
    steps: Sequence[int]
    """[S] steps between which the slider moves."""
    views: Sequence[StoredText]
    """[V] rows: the most frequent views."""
    actions: Sequence[StoredText]
    """[A] columns: the most frequent actions. Rarer ones count as others."""
    times: Sequence[Sequence[Sequence[int]]]
    """[S][V][A] numbers of uses."""
    uses: Sequence[Sequence[int]]
    """[S][V] numbers of uses with all actions; for words, the number of texts."""
    hidden: int
    """Number of views without a row."""

    def labels(self) -> list[str]:
        """Return the labels of the rows; long ones lack the words that all of them share."""
        if self.kind == "answer":
            return [cut(view.shown) or "first round" for view in self.views]
        return labels_of([view.shown for view in self.views])

    def names(self) -> list[str]:
        """Return the labels of the columns."""
        return [
            "no valid action" if each.id == INVALID else cut(each.shown) or "(empty)"
            for each in self.actions
        ]

    def others(self, place: int) -> list[int] | None:
        """Return the numbers of uses of actions without a column, by row, at step `steps[place]`;
        None for a table of words."""
        if self.kind in WHOLE:
            return None
        pairs = zip(self.uses[place], self.times[place], strict=True)
        return [uses - sum(times) for uses, times in pairs]

    def rows(self, place: int) -> Iterator[tuple[str, StoredText, int, list[HeatCell]]]:
        """Yield (label, view, number of uses, cells) of each row at step `steps[place]`."""
        for row, (label, view) in enumerate(zip(self.labels(), self.views, strict=True)):
            total = self.uses[place][row]
            cells = [
                HeatCell(
                    times=times,
                    share=times / total if total else 0.0,
                    link=self.link(view, action),
                )
                for times, action in zip(self.times[place][row], self.actions, strict=True)
            ]
            yield label, view, total, cells

    def link(self, view: StoredText, action: StoredText | None = None) -> str:
        """Return the query of the list of episodes for a cell or a row, without the step."""
        query = {"agent": self.agent, "kind": self.kind, "view": view.digest}
        return urlencode(query if action is None else {**query, "action": action.digest})

    def place_of(self, step: int | None) -> int:
        """Return the index in `steps` of the step nearest to `step`; None: of the last step."""
        if step is None:
            return len(self.steps) - 1
        return min(range(len(self.steps)), key=lambda place: abs(self.steps[place] - step))

    def to_json(self) -> dict[str, Any]:
        """Return the heat map as plain data."""
        return {
            "agent": self.agent,
            "kind": self.kind,
            "steps": list(self.steps),
            "views": [{"digest": view.digest, "text": view.shown} for view in self.views],
            "actions": [
                {"digest": each.digest, "text": None if each.id == INVALID else each.shown}
                for each in self.actions
            ],
            "times": self.times,
            "uses": self.uses,
            "hidden_views": self.hidden,
        }


def heat_map(index: EpisodeIndex, agent: str, kind: Kind, steps: Sequence[int]) -> HeatMap:
    """Return the heat map of a table; `steps` are all its recorded steps, in order.

    The caller holds the index's lock. The map has at most 60 of the steps (`usage.MOST_FRAMES`),
    evenly spaced, with the first and the last.
    """
    shown = frames(steps)
    found = index.usage.cells(agent, kind, shown)
    whole = index.usage.cells(agent, WHOLE[kind], shown) if kind in WHOLE else found
    by_view = _sums(whole, part=0)
    by_action = _sums(found, part=1)
    texts = index.usage.texts([*by_view, *by_action])
    common = sorted(by_view, key=lambda each: -by_view[each])[:MOST_VIEWS]
    rows = sorted(common, key=lambda each: texts[each].shown)
    listed = [move for row in rows for move in index.usage.legal(row)]
    order = {move: place for place, move in enumerate(dict.fromkeys(listed))}

    def rank(action: int) -> tuple[bool, int, float]:
        last = len(order)
        return action == INVALID, order.get(texts[action].shown, last), -by_action[action]

    peaks: dict[int, float] = {}
    for step, at in found.items():
        total = sum(_sums({step: whole[step]}, part=0).values())
        for action, times in _sums({step: at}, part=1).items():
            peaks[action] = max(peaks.get(action, 0.0), times / total)
    common = [each for each in by_action if peaks[each] >= SEEN or texts[each].shown in order]
    common.sort(key=lambda each: (texts[each].shown not in order, -by_action[each]))
    columns = sorted(common[:MOST_ACTIONS], key=rank)
    return HeatMap(
        agent=agent,
        kind=kind,
        steps=shown,
        views=[texts[row] for row in rows],
        actions=[texts[column] for column in columns],
        times=[
            [[found[step].get((row, column), 0) for column in columns] for row in rows]
            for step in shown
        ],
        uses=[
            [totals.get(row, 0) for row in rows]
            for step in shown
            for totals in [_sums({step: whole[step]}, part=0)]
        ],
        hidden=len(by_view) - len(rows),
    )


def _sums(cells: Mapping[int, Mapping[tuple[int, int], int]], *, part: int) -> dict[int, int]:
    """Return the number of uses by view (part 0) or by action (part 1)."""
    found: dict[int, int] = {}
    for at in cells.values():
        for key, times in at.items():
            found[key[part]] = found.get(key[part], 0) + times
    return found


def labels_of(texts: Sequence[str]) -> list[str]:
    """Return short labels of texts: long ones lose the words that all of them begin or end with."""
    if len(texts) > 1 and max(map(len, texts)) > SHORT:
        split = [text.split() for text in texts]
        before = shared_words(split)
        split = [words[before:] for words in split]
        after = shared_words([words[::-1] for words in split])
        texts = [" ".join(words[: len(words) - after]) for words in split]
    return [cut(text) or "(nothing)" for text in texts]


def cut(text: str) -> str:
    """Return the label of a row or a column, a text in one line of at most 60 characters."""
    return line_of(text, head=28, tail=27)
