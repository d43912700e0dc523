"""Pages and data of the lists of episodes and of groups, with the words that agents said."""

from dataclasses import asdict, dataclass
from typing import Any

from selfplay.errors import RunError
from selfplay.run.report.html import render, visible
from selfplay.run.report.transcripts import content
from selfplay.types import Episode
from selfplay.viewer.answers import SUMMED, Answer, newest_answers
from selfplay.viewer.catalog import ListedRun
from selfplay.viewer.episode_filter import EpisodeFilter, SortOrder, links
from selfplay.viewer.episode_list import EpisodeRow
from selfplay.viewer.episode_pages import PATIENCE, EpisodePages
from selfplay.viewer.excerpts import Marked, marked
from selfplay.viewer.group_list import ORDERS, GroupRow
from selfplay.viewer.index import LONGEST_SEARCHED, EpisodeIndex

MOST_READ = 4_000_000
"""Largest number of bytes of records that one page reads for its excerpts."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A page of a list of episodes or groups. `ListPages` makes it."""

    asked: EpisodeFilter
    """The filter."""
    order: SortOrder
    """The order."""
    page: int
    """The page, from 0."""
    total: int
    """Number of entries of all pages."""
    left: int
    """Number of steps that are not indexed yet."""
    rows: tuple[tuple[EpisodeRow | GroupRow, Marked], ...]
    """Entries of the page, each with its excerpt around the searched words."""
    answers: tuple[Answer, ...]
    """Most frequent answers in the newest `SUMMED` found episodes."""
    orders: tuple[str, ...]
    """Names of the values that the list can be sorted by."""

    def to_json(self) -> dict[str, Any]:
        """Return the list as plain data."""
        return {
            "total": self.total,
            "left": self.left,
            "page": self.page,
            "orders": list(self.orders),
            "answers": [{**asdict(a), "fraction": a.fraction} for a in self.answers],
            "rows": [
                {**asdict(row), "excerpt": [{"text": text, "found": hit} for text, hit in excerpt]}
                for row, excerpt in self.rows
            ],
        }


class ListPages:
    """Makes the lists of episodes and of groups."""

    def __init__(self, episodes: EpisodePages) -> None:
        """`episodes`: has the indexes of the runs."""
        self._pages = episodes

    def episodes(self, name: str, asked: EpisodeFilter, order: SortOrder, page: int) -> Listing:
        """Return a page of the list of episodes."""
        index, left = self._updated(self._pages.catalogue.run(name))
        with index.lock:
            rows, total = index.list.find(asked, order, page)
            answers, orders = newest_answers(index.base, asked), index.list.orders()
        return Listing(
            asked=asked,
            order=order,
            page=page,
            total=total,
            left=left,
            rows=tuple(zip(rows, _excerpts(index, rows, asked), strict=True)),
            answers=tuple(answers),
            orders=tuple(orders),
        )

    def groups(self, name: str, asked: EpisodeFilter, order: SortOrder, page: int) -> Listing:
        """Return a page of the list of groups with an episode that the filter selects."""
        index, left = self._updated(self._pages.catalogue.run(name))
        with index.lock:
            rows, total = index.groups.find(asked, order, page)
            answers = newest_answers(index.base, asked)
            names = [(row.step, row.name) for row in rows] if asked.said or asked.text else []
            found = index.list.firsts(names, asked)
        excerpts = dict(zip(found, _excerpts(index, [*found.values()], asked), strict=True))
        return Listing(
            asked=asked,
            order=order,
            page=page,
            total=total,
            left=left,
            rows=tuple((row, excerpts.get((row.step, row.name), ())) for row in rows),
            answers=tuple(answers),
            orders=ORDERS,
        )

    def episodes_page(self, name: str, asked: EpisodeFilter, order: SortOrder, page: int) -> str:
        """Render a page of the list of episodes."""
        return self._render("Episodes", name, self.episodes(name, asked, order, page))

    def groups_page(self, name: str, asked: EpisodeFilter, order: SortOrder, page: int) -> str:
        """Render a page of the list of groups."""
        return self._render("Groups", name, self.groups(name, asked, order, page))

    def _updated(self, run: ListedRun) -> tuple[EpisodeIndex, int]:
        """Return the index of a run, and the number of steps that it does not have yet."""
        index = self._pages.index_of(run)
        left = index.update(PATIENCE)
        if left:
            index.update_in_background()
        return index, left

    def _render(self, title: str, name: str, listing: Listing) -> str:
        run = self._pages.catalogue.run(name)
        index, asked = self._pages.index_of(run), listing.asked
        with index.lock:
            roles = index.list.roles()
        return render(
            "viewer_episodes.html.jinja",
            title=f"{title} of {name}",
            run=run,
            listing=listing,
            asked=asked,
            groups=title == "Groups",
            nothing=not listing.left and not listing.total and asked == EpisodeFilter(),
            roles=roles,
            links=links(listing.page, listing.total, {**asked.fields(), **listing.order.fields()}),
            summed=SUMMED,
            cell=_cell(index, asked),
        )


def _excerpts(index: EpisodeIndex, rows: list[EpisodeRow], asked: EpisodeFilter) -> list[Marked]:
    """Return an excerpt of each episode around the searched words.

    It is empty without a search, for a damaged episode, and once `MOST_READ` bytes are read.
    """
    words, read = asked.said or asked.text, 0
    if not words:
        return [()] * len(rows)
    texts = []
    for row in rows:
        read += row.bytes
        try:
            episode = index.read(row.step, row.line).episode if read <= MOST_READ else None
        except RunError:  # the list says "unreadable", and the page of the episode gives the reason
            episode = None
        texts.append("" if episode is None else _searched(episode, said=bool(asked.said)))
    return marked([str(visible(text)) for text in texts], words)


def _searched(episode: Episode, *, said: bool) -> str:
    """Return the text in which the index searches."""
    texts = [turn.text for turn in episode.turns]
    if not said:
        contents = [content(m) for turn in episode.turns for m in turn.messages]
        texts = [*texts, episode.task.id, episode.error, *contents]
    return "\n".join(texts)[:LONGEST_SEARCHED]


def _cell(index: EpisodeIndex, asked: EpisodeFilter) -> dict[str, str] | None:
    """Return the texts of the asked cell of a table; None without one."""
    if asked.cell is None:
        return None
    with index.lock:
        view, action = (index.usage.text_of(each) for each in (asked.cell.view, asked.cell.action))
    invalid = asked.cell.action == "-"
    return {"agent": asked.cell.agent, "view": view, "action": "" if invalid else action}
