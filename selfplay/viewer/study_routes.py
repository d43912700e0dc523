"""Addresses of the studies of a run: the list, its data, one study, and its measurement."""

import sqlite3
from collections.abc import Callable
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from selfplay.errors import RunError
from selfplay.viewer import web
from selfplay.viewer.requests import Handler, as_data, as_json, run_of
from selfplay.viewer.study_pages import StudyPages


def study_routes(
    studies: StudyPages, page: Callable[[Callable[[Request], str]], Handler]
) -> list[Route]:
    """Return the routes of the list of studies, of its data, and of one study.

    Args:
        studies: Makes the pages, and measures studies again.
        page: Converts a function that renders a page to a handler.
    """

    def listing(request: Request) -> Response:
        return as_data(studies.listing_data(run_of(request)))

    def shown(request: Request) -> str:
        return studies.study(run_of(request), request.path_params["study"])

    def progress(request: Request) -> Response:
        return HTMLResponse(studies.progress(run_of(request), request.path_params["study"]))

    def takes(act: Callable[[str, str], None]) -> Handler:
        """Return the handler of a form, which leads back to the page of the study."""

        async def answer(request: Request) -> Response:
            run, study = run_of(request), str(request.path_params["study"])
            back = f"/run/{quote(run, safe='')}/studies/{quote(study, safe='')}"
            try:
                await web.form_of(request, studies.secret)
                await run_in_threadpool(act, run, study)
            except (RunError, OSError, sqlite3.Error) as error:
                return HTMLResponse(web.refused(str(error), back=back), status_code=403)
            return RedirectResponse(back, status_code=303)  # a reload does not begin it again

        return answer

    one = "/run/{run}/studies/{study}"
    return [
        Route("/run/{run}/studies.json", as_json(listing)),
        Route("/run/{run}/studies", page(lambda r: studies.listing(run_of(r)))),
        Route(one, page(shown)),
        Route(f"{one}/progress", as_json(progress)),
        Route(f"{one}/again", takes(studies.begin), methods=["POST"]),
        Route(f"{one}/stop", takes(studies.stop), methods=["POST"]),
    ]
