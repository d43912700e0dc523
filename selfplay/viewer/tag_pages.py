"""The page of the tags of runs: it shows them, adds and removes them."""

import secrets
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from selfplay.errors import ConfigError, RunError
from selfplay.run.report.html import render
from selfplay.run.tags import change_tags, read_tags
from selfplay.viewer import web
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.requests import Handler

MOST_RUNS = 200
"""Largest number of runs of one form."""


class TagPages:
    """Renders the tags of chosen runs, and changes them."""

    def __init__(self, catalogue: RunCatalogue) -> None:
        self.catalogue = catalogue
        self.secret = secrets.token_urlsafe(24)
        """Secret of the forms on the page."""

    def page(self, names: Sequence[str]) -> str:
        """Render the tags of runs; raise RunError for an unknown run."""
        runs = [self.catalogue.run(name) for name in self._chosen(names)]
        tags, problems = {}, {}
        for run in runs:
            try:
                tags[run.name] = read_tags(run.folder)
            except RunError as error:
                problems[run.name] = str(error)
        return render(
            "viewer_tags.html.jinja",
            title="Tags",
            tags=tags,
            problems=problems,
            known=sorted({tag for found in tags.values() for tag in found}),
            secret=self.secret,
        )

    def change(self, names: Sequence[str], words: Sequence[str], *, remove: bool) -> None:
        """Add or remove tags in runs; raise RunError or ConfigError for what is refused."""
        folders = [self.catalogue.run(name).folder for name in self._chosen(names)]
        if not words:
            raise ConfigError("no tag is written; write one or more words")
        for folder in folders:
            change_tags(folder, add=() if remove else words, remove=words if remove else ())

    @staticmethod
    def _chosen(names: Sequence[str]) -> list[str]:
        chosen = list(dict.fromkeys(names))
        if not 1 <= len(chosen) <= MOST_RUNS:
            raise RunError(f"choose from 1 to {MOST_RUNS} runs to tag, not {len(chosen)}")
        return chosen


def tag_routes(tags: TagPages, page: Callable[[Callable[[Request], str]], Handler]) -> list[Route]:
    """Return the routes of the page of tags and of its form.

    Args:
        tags: Makes the page, and changes tags.
        page: Converts a function that renders a page to a handler.
    """

    async def change(request: Request) -> Response:
        try:
            fields = await web.fields_of(request, tags.secret, most=MOST_RUNS + 9)
            asked = dict(fields)
            names = [text for name, text in fields if name == "run"]
            words, remove = asked.get("tags", "").split(), asked.get("change") == "remove"
            await run_in_threadpool(tags.change, names, words, remove=remove)
        except (RunError, ConfigError, OSError) as error:
            return HTMLResponse(web.refused(str(error), back="/"), status_code=403)
        query = urlencode([("run", name) for name in dict.fromkeys(names)])
        return RedirectResponse(f"/tags?{query}", status_code=303)  # a reload changes nothing

    return [
        Route("/tags", page(lambda request: tags.page(request.query_params.getlist("run")))),
        Route("/tags", change, methods=["POST"]),
    ]
