"""Pages of the table of runs, of differences between configs, and of a run's static pages."""

from collections.abc import Sequence
from urllib.parse import urlencode

from selfplay.errors import RunError
from selfplay.run.report.html import render
from selfplay.run.report.sweep_report import render_ablation
from selfplay.run.untrusted import open_regular
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.run_table import (
    COLUMNS,
    RunTable,
    TableQuery,
    mean_text,
    means_of,
    static_pages,
)

LARGEST_PAGE = 100_000_000
"""Largest number of bytes of a static page."""
INERT = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'"
"""Content-Security-Policy of static pages: they have an origin of their own and run no script."""


class TablePages:
    """Renders the table of runs and the pages that it links."""

    def __init__(self, catalogue: RunCatalogue) -> None:
        self.catalogue = catalogue
        self.table = RunTable(catalogue)

    def runs(self, asked: TableQuery) -> str:
        """Render the table of runs."""
        listing = self.table.listing(asked)

        def link(column: str) -> str:
            """Return the query that sorts by a column; a second click reverses the order."""
            fields = {"sort": column, "words": asked.words, "seeds": "1" if asked.seeds else ""}
            fields["down"] = "1" if asked.sort == column and not asked.descending else ""
            return urlencode({name: text for name, text in fields.items() if text})

        rows = [row for group in listing.groups for row in group]
        columns = [
            column
            for column in (*COLUMNS, *listing.keys)
            if column in COLUMNS[:2] or any(row.value(column) for row in rows)
        ]
        return render(
            "viewer_runs.html.jinja",
            title="Runs",
            listing=listing,
            asked=asked,
            columns=columns,
            link=link,
            means_of=means_of,
            mean_text=mean_text,
        )

    def configs(self, names: Sequence[str]) -> str:
        """Render the differences between the configs of runs."""
        found = self.table.compared(names)
        return render("viewer_configs.html.jinja", title="Configs", **found)

    def sweep(self, name: str) -> bytes:
        """Return the page of the sweep that a run belongs to, as it is now.

        Raises RunError if the run belongs to none, or if none of its runs has ended.
        """
        folder = self.catalogue.sweep_of(self.catalogue.run(name))
        if folder is None:
            raise RunError(f"{name} belongs to no sweep here")
        return render_ablation(folder).encode()

    def static(self, name: str, page: str) -> bytes:
        """Return a static page of a run; raise RunError if the run has none of this name."""
        run = self.catalogue.run(name)
        if page not in static_pages(run.folder):
            raise RunError(f"{name} has no page {page[:80]!r}")
        with open_regular(run.folder / page, root=run.folder) as file:
            data = file.read(LARGEST_PAGE + 1)
        if len(data) > LARGEST_PAGE:
            raise RunError(f"{name}: {page} has more than {LARGEST_PAGE:,} bytes")
        return data
