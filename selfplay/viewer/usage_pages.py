"""Pages of language and behaviour: words and moves of each agent by what it saw, over the steps.

Both are made from the index of the recorded episodes; no arena and no policy is loaded. Equilibria
and exact probabilities, which a study computed with them, are read from `studies/behaviour.json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from markupsafe import Markup

from selfplay.errors import RunError
from selfplay.run.formatting import as_of, number, percent
from selfplay.run.report.charts import MOST_SERIES, Chart, Series, draw
from selfplay.run.report.html import render
from selfplay.study.stats.bootstrap import finite
from selfplay.study.stats.usage import (
    PLAY,
    SPEECH,
    WHOLE,
    Kind,
    UsageSummary,
    Word,
    dying,
    newest,
)
from selfplay.viewer.episode_pages import PATIENCE, EpisodePages
from selfplay.viewer.heat_map import HeatMap, heat_map
from selfplay.viewer.index import EpisodeIndex
from selfplay.viewer.solutions import Solutions, read_solutions

Page: TypeAlias = Literal["language", "behaviour"]
SHOWN: Mapping[Page, tuple[Kind, ...]] = {"language": SPEECH, "behaviour": PLAY}
"""Kinds of tables of each page."""
MOST_ACTION_CHARTS = 4
"""Largest number of actions with a chart of their own."""
MOST_TABLES = 64
"""Largest number of tables that a page links."""
FEW_WORDS = 0.5
"""Least number of counted words per text for which a table of words is shown."""


@dataclass(frozen=True, kw_only=True)
class UsageView:
    """All that a page of language or behaviour shows of a run; its JSON has the same content."""

    tables: Sequence[tuple[str, Kind]]
    """(agent, kind) of the tables of the page."""
    map: HeatMap | None
    """The chosen table; None if the run has no table of this page."""
    summaries: Mapping[int, UsageSummary]
    """Numbers of the chosen table at every recorded step."""
    newest: Sequence[Word]
    """Words or moves that were first used after the first recorded step."""
    dying: Sequence[Word]
    """Words or moves that have nearly disappeared."""
    now: Mapping[str, float]
    """Word or move to its fraction of all uses at the last step."""
    solutions: Solutions
    """Equilibrium and exact probabilities of the run's study."""
    left: int
    """Number of steps that are not indexed yet."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of the page as plain data."""
        if self.map is None:
            return {"tables": [], "steps_to_index": self.left}
        solved = self.solutions.of(self.map)
        return {
            "tables": [{"agent": agent, "kind": kind} for agent, kind in self.tables],
            **self.map.to_json(),
            **({} if solved is None else solved.to_json()),
            "summaries": [
                {"step": step, **{k: finite(v) for k, v in vars(each).items()}}
                for step, each in self.summaries.items()
            ],
            "newest": [vars(word) for word in self.newest],
            "dying": [{**vars(word), "now": self.now.get(word.text, 0.0)} for word in self.dying],
            "steps_to_index": self.left,
        }


class UsagePages:
    """Renders the pages of language and behaviour of all runs."""

    def __init__(self, episodes: EpisodePages) -> None:
        """`episodes`: the pages that hold the indexes."""
        self.episodes = episodes

    def view(self, page: Page, name: str, agent: str, kind: str) -> UsageView:
        """Return the content of a page; an unknown agent or kind is the first one."""
        run = self.episodes.catalogue.run(name)
        index = self.episodes.index_of(run)
        left = index.update(PATIENCE)
        if left:
            index.update_in_background()
        with index.lock:
            return _view(index, page, agent, kind, read_solutions(run.folder), left)

    def render(
        self,
        page: Page,
        name: str,
        agent: str,
        kind: str,
        step: int | None = None,
        at: int | None = None,
    ) -> str:
        """Render a page with the heat map of a step: the one nearest to `step`, or the one at the
        place `at` of the slider, or the last one."""
        run = self.episodes.catalogue.run(name)
        shown = self.view(page, name, agent, kind)
        place = shown.map.place_of(step) if shown.map else 0
        if shown.map and step is None and at is not None:
            place = min(at, len(shown.map.steps) - 1)
        return render(
            "viewer_usage.html.jinja",
            title=f"{page.capitalize()} of {name}",
            run=run,
            page=page,
            view=shown,
            map=shown.map,
            place=place,
            solved=shown.solutions.of(shown.map) if shown.map else None,
            charts=[(chart, Markup(draw(chart))) for chart in _charts(page, shown)],
            words=shown.map is not None and shown.map.kind in WHOLE,
        )


def _view(
    index: EpisodeIndex, page: Page, agent: str, kind: str, solutions: Solutions, left: int
) -> UsageView:
    tables = _tables(index, page)
    chosen = next((table for table in tables if table == (agent, kind)), None)
    if chosen is None:
        chosen = next((table for table in tables if table[0] == agent), None)
    chosen = chosen or (tables[0] if tables else None)
    if chosen is None:
        return UsageView(
            tables=(),
            map=None,
            summaries={},
            newest=(),
            dying=(),
            now={},
            solutions=solutions,
            left=left,
        )
    summaries = index.usage.summaries(*chosen)
    steps = list(summaries)
    found = heat_map(index, *chosen, steps)
    vocabulary = index.usage.vocabulary(*chosen)
    now = _last_shares(index, chosen, steps[-1], summaries[steps[-1]].uses)
    return UsageView(
        tables=tables,
        map=found,
        summaries=summaries,
        newest=newest(vocabulary, steps[0]),
        dying=dying(vocabulary, now),
        now=now,
        solutions=solutions,
        left=left,
    )


def _tables(index: EpisodeIndex, page: Page) -> list[tuple[str, Kind]]:
    """Return the tables of a page; tables of words only where texts commonly have several."""
    found = index.usage.tables(SHOWN[page])
    uses = {table: index.usage.uses(*table) for table in found}
    return [
        table
        for table in found
        if table[1] not in WHOLE
        or uses[table] >= FEW_WORDS * uses.get((table[0], WHOLE[table[1]]), 0)
    ][:MOST_TABLES]


def _last_shares(
    index: EpisodeIndex, table: tuple[str, Kind], step: int, uses: int
) -> dict[str, float]:
    cells = index.usage.cells(*table, [step])[step]
    texts = index.usage.texts(action for _, action in cells)
    shares: dict[str, float] = {}
    for (_, action), times in cells.items():
        if texts[action].id:
            text = texts[action].shown
            shares[text] = shares.get(text, 0.0) + times / uses
    return shares


def _charts(page: Page, shown: UsageView) -> list[Chart]:
    if shown.map is None:
        return []
    kind, what = shown.map.kind, "words" if page == "language" else "moves"
    charts = [_chart(f"Entropy of {what}, nats", shown, {"all": "entropy"})]
    if kind not in WHOLE:
        names = {"corrected": "information", "by chance": "chance"}
        title = f"Information of {'word' if page == 'language' else 'move'} and view, nats"
        charts.append(_chart(title, shown, names))
    return [*_by_view(shown.map), *charts]


def _by_view(shown: HeatMap) -> list[Chart]:
    """Return charts of the fraction of each frequent action over the steps, by view."""
    totals = [sum(at[row] for at in shown.uses) for row in range(len(shown.views))]
    most = sorted(range(len(totals)), key=lambda row: -totals[row])[:MOST_SERIES]
    valid = [column for column, action in enumerate(shown.actions) if action.id]
    charts = []
    for column in valid[-1:] if len(valid) == 2 else valid[:MOST_ACTION_CHARTS]:
        series = []
        for row in sorted(most):
            shares = [
                (step, at[row][column] / uses[row])
                for step, at, uses in zip(shown.steps, shown.times, shown.uses, strict=True)
                if uses[row]
            ]
            steps, values = zip(*shares, strict=True)
            latest = as_of(percent(values[-1]), steps[-1], shown.steps[-1])
            label = shown.labels()[row]
            series.append(Series(label=label, steps=steps, values=values, latest=latest))
        title = f"Fraction of {shown.names()[column]} by view"
        charts.append(Chart(title=title, series=tuple(series), omitted=0, share=True))
    return charts


def _chart(title: str, shown: UsageView, names: Mapping[str, str]) -> Chart:
    rows = [(step, vars(each)) for step, each in shown.summaries.items()]
    series = []
    for label, name in names.items():
        points = [(step, row[name]) for step, row in rows]
        steps, values = zip(*points, strict=True)
        series.append(Series(label=label, steps=steps, values=values, latest=number(values[-1])))
    return Chart(title=title, series=tuple(series), omitted=0, share=False)


def page_of(text: str) -> Page:
    """Return the page of a name in an address; raise RunError for another name."""
    if text == "language":
        return "language"
    if text == "behaviour":
        return "behaviour"
    raise RunError(f"no page {text[:20]!r} here")
