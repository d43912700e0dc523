"""Pages of the studies of a run: the list, and one study with its tables and curves by step."""

import secrets
import shlex
from typing import Any

from markupsafe import Markup

from selfplay.errors import RunError
from selfplay.run.report.charts import draw
from selfplay.run.report.html import render
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.live_progress import render_study_progress
from selfplay.viewer.stored_studies import MOST_ROWS, read_studies, read_study, to_json
from selfplay.viewer.study_runner import StudyRunner, repeated

MOST_CHARTS = 20
"""Largest number of curves on the page of a study."""


class StudyPages:
    """Renders studies that the run folder holds, and measures them again on request."""

    def __init__(self, catalogue: RunCatalogue) -> None:
        self.catalogue = catalogue
        self.runner = StudyRunner()
        self.secret = secrets.token_urlsafe(24)
        """Secret of the forms on the pages."""

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
        try:
            command, fixed = shlex.join(repeated(run, study, found.study.command)), ""
        except RunError as error:
            command, fixed = found.study.command, str(error)
        charts = [chart for table in found.study.tables for chart in table.charts()][:MOST_CHARTS]
        return render(
            "viewer_study.html.jinja",
            title=found.study.title,
            run=run,
            page=found.page,
            study=found.study,
            name=study,
            most=MOST_ROWS,
            command=command,
            fixed=fixed,
            running=self.runner.is_running(run, study),
            problem=self.runner.problem(run, study),
            progress=Markup(self.progress(name, study)),
            secret=self.secret,
            charts=[(chart, Markup(draw(chart))) for chart in charts],
        )

    def progress(self, name: str, study: str) -> str:
        """Render the present work of a study that is being measured; else empty."""
        return render_study_progress(self.catalogue.run(name), study)

    def begin(self, name: str, study: str) -> None:
        """Measure a study again; raise RunError, in one line, if that is not possible."""
        run = self.catalogue.run(name)
        found = read_study(run.folder, study)
        if found.study is None:
            raise RunError(f"{name}: {found.problem}")
        self.runner.begin(run, study, found.study.command)

    def stop(self, name: str, study: str) -> None:
        """Stop a study that is being measured."""
        self.runner.stop(self.catalogue.run(name), study)

    def listing_data(self, name: str) -> list[Any]:
        """Return the studies of a run as plain data."""
        return [to_json(each) for each in read_studies(self.catalogue.run(name).folder)]
