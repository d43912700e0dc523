"""Pages of the studies of a run: the list, and one study with its tables and curves by step."""

from typing import Any

from markupsafe import Markup

from selfplay.errors import RunError
from selfplay.run.report.charts import draw
from selfplay.run.report.html import render
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.stored_studies import MOST_ROWS, read_studies, read_study, to_json

MOST_CHARTS = 20
"""Largest number of curves on the page of a study."""


class StudyPages:
    """Renders studies that the run folder holds; it computes none."""

    def __init__(self, catalogue: RunCatalogue) -> None:
        self.catalogue = catalogue

    def listing(self, name: str) -> str:
        """Render the list of a run's studies."""
        run = self.catalogue.run(name)
        return render(
            "viewer_studies.html.jinja",
            title=f"Studies of {name}",
            run=run,
            studies=read_studies(run.folder),
        )

    def study(self, name: str, study: str) -> str:
        """Render one study; raise RunError, in one line, if it is missing or damaged."""
        run = self.catalogue.run(name)
        found = read_study(run.folder, study)
        if found.study is None:
            raise RunError(f"{name}: {found.problem}")
        charts = [chart for table in found.study.tables for chart in table.charts()][:MOST_CHARTS]
        return render(
            "viewer_study.html.jinja",
            title=found.study.title,
            run=run,
            page=found.page,
            study=found.study,
            most=MOST_ROWS,
            charts=[(chart, Markup(draw(chart))) for chart in charts],
        )

    def listing_data(self, name: str) -> list[Any]:
        """Return the studies of a run as plain data."""
        return [to_json(each) for each in read_studies(self.catalogue.run(name).folder)]
