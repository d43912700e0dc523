"""Addresses of the studies of a run: the list, its data, and one study."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from selfplay.viewer.requests import Handler, as_data, as_json, run_of
from selfplay.viewer.study_pages import StudyPages


def study_routes(
    studies: StudyPages, page: Callable[[Callable[[Request], str]], Handler]
) -> list[Route]:
    """Return the routes of the list of studies, of its data, and of one study."""

    def listing(request: Request) -> Response:
        return as_data(studies.listing_data(run_of(request)))

    def shown(request: Request) -> str:
        return studies.study(run_of(request), request.path_params["study"])

    return [
        Route("/run/{run}/studies.json", as_json(listing)),
        Route("/run/{run}/studies", page(lambda r: studies.listing(run_of(r)))),
        Route("/run/{run}/studies/{study}", page(shown)),
    ]
