"""The web server of the viewer.

Pages are rendered on the server. An open page polls for changes; the answer has no body if there
are none. The interval depends on the cost of the answers, so that all open pages except those
of curves together take at most about 1/300 of one core, and pages of curves 1/125.
"""

import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from selfplay.errors import RunError
from selfplay.run.formatting import counted
from selfplay.viewer import web
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.curve_pages import MOST_PINS, MOST_RUNS, CurvePages, CurveQuery
from selfplay.viewer.episode_filter import EpisodeFilter, SortOrder
from selfplay.viewer.episode_pages import EpisodePages
from selfplay.viewer.group_pages import GroupPages
from selfplay.viewer.league_pages import LeaguePages, league_routes
from selfplay.viewer.list_pages import Listing, ListPages
from selfplay.viewer.live_progress import progress_routes
from selfplay.viewer.metric_columns import ColumnStore
from selfplay.viewer.requests import Handler, PollLimiter, as_data, as_json, number_of, place_of
from selfplay.viewer.run_pages import RunPages
from selfplay.viewer.run_table import TableQuery
from selfplay.viewer.study_pages import StudyPages
from selfplay.viewer.study_routes import study_routes
from selfplay.viewer.table_pages import INERT, TablePages
from selfplay.viewer.tag_pages import TagPages, tag_routes
from selfplay.viewer.task_pages import TaskQuery
from selfplay.viewer.usage_index import CellKey
from selfplay.viewer.usage_pages import SHOWN, Page, UsagePages, page_of

CURVES_SHARE = 125
"""Wall-clock seconds per second of work for all open pages of curves together."""


def application(
    catalogue: RunCatalogue, *, cache: Path, token: str = "", host: str = "127.0.0.1"
) -> Starlette:
    """Return the web application.

    Args:
        catalogue: The runs to show.
        cache: Folder of the indexes of episodes.
        token: Token that a client needs; empty on loopback.
        host: The server's address.
    """
    columns, listed, pace = ColumnStore(), EpisodePages(catalogue, cache), PollLimiter()
    pages, tables = RunPages(catalogue, columns), TablePages(catalogue)

    def page(make: Callable[[Request], str]) -> Handler:
        async def answer(request: Request) -> Response:
            try:
                return HTMLResponse(await run_in_threadpool(listed.with_rebuild(make), request))
            except (RunError, OSError, OverflowError, sqlite3.Error) as error:
                return HTMLResponse(pages.error(str(error)), status_code=404)

        return answer

    def live(make: Callable[[Request], str]) -> Handler:
        """Return the handler of a page that is polled: it sets an ETag and the next interval."""
        inner = page(make)

        async def answer(request: Request) -> Response:
            begun, known = time.process_time(), request.headers.get("if-none-match")
            stamp = await run_in_threadpool(pages.stamp, request.path_params.get("run"))
            tag = web.tag_of(stamp)
            response = Response(status_code=304) if known == tag else await inner(request)
            # A poll of an open page has the header if-none-match; a newly opened page has not.
            cost = 0.0 if known is None else time.process_time() - begun
            wait = pace.wait(cost, time.monotonic())
            response.headers.update({"ETag": tag, "X-Look-Again": f"{wait:.0f}"})
            return response

        return answer

    def data(make: Callable[[Request], Response]) -> Handler:
        """Return the handler of data that is made from an index of episodes."""
        return as_json(listed.with_rebuild(make))

    routes = [
        Route("/", live(lambda request: tables.runs(_table(request)))),
        *table_routes(tables, page),
        Route("/viewer.js", web.script("viewer.js")),
        Route("/curves.js", web.script("curves.js")),
        Route("/uplot.js", web.script("uplot/uPlot.iife.min.js")),
        *curve_routes(CurvePages(catalogue, columns), page, PollLimiter(CURVES_SHARE)),
        *run_routes(pages, listed, page, live),
        *list_routes(ListPages(listed), page, data),
        *group_routes(GroupPages(listed), page, data),
        *episode_routes(listed, page, data),
        *study_routes(StudyPages(catalogue), page),
        *progress_routes(catalogue),
        *league_routes(LeaguePages(catalogue), page),
        *tag_routes(TagPages(catalogue), page),
        *usage_routes(UsagePages(listed), page, data),
    ]
    return Starlette(routes=routes, middleware=web.guards(token, host))


def run_routes(
    pages: RunPages,
    listed: EpisodePages,
    page: Callable[[Callable[[Request], str]], Handler],
    live: Callable[[Callable[[Request], str]], Handler],
) -> list[Route]:
    """Return the routes of the pages of one run, of its tasks, and of a comparison of runs.

    Args:
        pages: Renders the pages, and makes the data of tasks.
        listed: Renders the page of a folder of saved games, which is no run.
        page: Converts a function that renders a page to a handler.
        live: Does the same for a page that is polled.
    """

    def compare(request: Request) -> str:
        runs, asked = request.query_params.getlist("run"), request.query_params
        return pages.compare(runs, asked.get("section", ""), number_of(request, "page") or 0)

    def run(request: Request) -> str:
        name, number = request.path_params["run"], number_of(request, "page") or 0
        if pages.catalogue.run(name).state == "games":
            return listed.games(name, number)
        return pages.run(name, request.query_params.get("section", ""), number)

    def tasks(request: Request) -> str:
        return pages.tasks(request.path_params["run"], _tasks(request))

    def tasks_data(request: Request) -> Response:
        return as_data(pages.tasks_data(request.path_params["run"], _tasks(request)))

    return [
        Route("/compare", live(compare)),
        Route("/run/{run}", live(run)),
        Route("/run/{run}/failed", page(lambda r: pages.failed(r.path_params["run"]))),
        Route("/run/{run}/tasks", page(tasks)),
        Route("/run/{run}/tasks.json", as_json(tasks_data)),
    ]


def episode_routes(
    listed: EpisodePages,
    page: Callable[[Callable[[Request], str]], Handler],
    data: Callable[[Callable[[Request], Response]], Handler],
) -> list[Route]:
    """Return the routes of the pages of episodes and of saved games, and of an episode's data.

    Args:
        listed: Renders the pages, and makes the data.
        page: Converts a function that renders a page to a handler.
        data: Converts a function that answers with data to a handler.
    """

    def place(request: Request) -> tuple[str, int, int]:
        return request.path_params["run"], place_of(request, "step"), place_of(request, "line")

    def colour(request: Request) -> str:
        return request.query_params.get("colour", "")

    def games(request: Request) -> str:
        return listed.games(request.path_params["run"], number_of(request, "page") or 0)

    def game(request: Request) -> str:
        run, name = request.path_params["run"], request.path_params["game"]
        return listed.game(run, name, colour(request))

    return [
        Route(
            "/run/{run}/episodes/{step}/{line}.json",
            data(lambda request: as_data(listed.episode_data(*place(request)))),
        ),
        Route(
            "/run/{run}/episodes/{step}/{line}",
            page(lambda request: listed.episode(*place(request), colour(request))),
        ),
        Route("/run/{run}/games", page(games)),
        Route("/run/{run}/games/{game}", page(game)),
    ]


def usage_routes(
    usage: UsagePages,
    page: Callable[[Callable[[Request], str]], Handler],
    data: Callable[[Callable[[Request], Response]], Handler],
) -> list[Route]:
    """Return the routes of the pages of behaviour and of language, and of their data.

    Args:
        usage: Renders the pages, and makes the data.
        page: Converts a function that renders a page to a handler.
        data: Converts a function that answers with data to a handler.
    """

    def asked(request: Request) -> tuple[str, str, str]:
        words = request.query_params
        return request.path_params["run"], words.get("agent", ""), words.get("kind", "")

    def shown(name: Page, request: Request) -> str:
        steps = number_of(request, "step"), number_of(request, "at")
        return usage.render(name, *asked(request), *steps)

    def view(request: Request) -> Response:
        name = page_of(request.path_params["page"])
        return JSONResponse(usage.view(name, *asked(request)).to_json())

    return [
        Route("/run/{run}/{page:str}.json", data(view)),
        *(Route(f"/run/{{run}}/{name}", page(partial(shown, name))) for name in SHOWN),
    ]


def curve_routes(
    curves: CurvePages, page: Callable[[Callable[[Request], str]], Handler], pace: PollLimiter
) -> list[Route]:
    """Return the routes of the page of curves and of its data.

    Args:
        curves: Renders the page, and makes the data.
        page: Converts a function that renders a page to a handler.
        pace: Sets the interval at which the data is asked for again.
    """

    def shown(request: Request) -> str:
        find, log = request.query_params.get("find", "")[:200], request.query_params.get("log")
        return curves.page(_curves(request), find=find, log=log == "1")

    def answer(request: Request) -> Response:
        """Answer with the data, or without a body if the client has it."""
        begun, known = time.process_time(), request.headers.get("if-none-match")
        asked = _curves(request)
        tag = web.tag_of(f"{curves.stamp(asked.runs)} {asked}")
        response = Response(status_code=304) if known == tag else as_data(curves.data(asked))
        cost = 0.0 if known is None else time.process_time() - begun
        wait = pace.wait(cost, time.monotonic())
        response.headers.update({"ETag": tag, "X-Look-Again": f"{wait:.0f}"})
        return response

    def names(request: Request) -> Response:
        return JSONResponse(curves.names(request.query_params.getlist("run")))

    return [
        Route("/curves", page(shown)),
        Route("/curves.json", as_json(answer)),
        Route("/curves/names.json", as_json(names)),
    ]


def list_routes(
    lists: ListPages,
    page: Callable[[Callable[[Request], str]], Handler],
    data: Callable[[Callable[[Request], Response]], Handler],
) -> list[Route]:
    """Return the routes of the lists of episodes and of groups, and of their data.

    Args:
        lists: Renders the pages, and makes the data.
        page: Converts a function that renders a page to a handler.
        data: Converts a function that answers with data to a handler.
    """

    def asked(request: Request) -> tuple[str, EpisodeFilter, SortOrder, int]:
        run, number = request.path_params["run"], number_of(request, "page") or 0
        return run, _filter(request), _order(request), number

    def listing(make: Callable[..., Listing]) -> Handler:
        return data(lambda request: as_data(make(*asked(request)).to_json()))

    return [
        Route("/run/{run}/episodes", page(lambda r: lists.episodes_page(*asked(r)))),
        Route("/run/{run}/groups", page(lambda r: lists.groups_page(*asked(r)))),
        Route("/run/{run}/episodes.json", listing(lists.episodes)),
        Route("/run/{run}/groups.json", listing(lists.groups)),
    ]


def group_routes(
    groups: GroupPages,
    page: Callable[[Callable[[Request], str]], Handler],
    data: Callable[[Callable[[Request], Response]], Handler],
) -> list[Route]:
    """Return the routes of the pages of groups and of their data.

    Args:
        groups: Renders the pages, and makes the data.
        page: Converts a function that renders a page to a handler.
        data: Converts a function that answers with data to a handler.
    """

    def shown(request: Request) -> str:
        run, group = request.path_params["run"], request.path_params["group"]
        return groups.page(run, place_of(request, "step"), group, number_of(request, "base"))

    def view(request: Request) -> Response:
        asked, run = request.query_params, request.path_params["run"]
        step = number_of(request, "step") or 0
        found = groups.view(run, step, asked.get("group", ""), number_of(request, "base"))
        return as_data(found.to_json())

    return [
        Route("/run/{run}/groups/{step}/{group:path}", page(shown)),
        Route("/run/{run}/group.json", data(view)),
    ]


def table_routes(
    tables: TablePages, page: Callable[[Callable[[Request], str]], Handler]
) -> list[Route]:
    """Return the routes of the table's data, of differences of configs, and of static pages.

    Args:
        tables: Renders the pages, and makes the data.
        page: Converts a function that renders a page to a handler.
    """

    def names(request: Request) -> list[str]:
        return request.query_params.getlist("run")

    def listing(request: Request) -> Response:
        return as_data(tables.table.listing(_table(request)).to_json())

    def static(request: Request) -> Response:
        data = tables.static(request.path_params["run"], request.path_params["page"])
        return HTMLResponse(data, headers={"Content-Security-Policy": INERT})

    def sweep(request: Request) -> Response:
        page = tables.sweep(request.path_params["run"])
        return HTMLResponse(page, headers={"Content-Security-Policy": INERT})

    return [
        Route("/runs.json", as_json(listing)),
        Route("/run/{run}/sweep", as_json(sweep)),
        Route("/configs", page(lambda request: tables.configs(names(request)))),
        Route("/configs.json", as_json(lambda r: JSONResponse(tables.table.compared(names(r))))),
        Route("/run/{run}/page/{page:path}", as_json(static)),
    ]


def serve(catalogue: RunCatalogue, *, cache: Path, host: str, port: int) -> None:
    """Serve the viewer until interrupted, and print its address.

    Raises ConfigError if the port is taken.
    """
    web.serve(
        lambda token: application(catalogue, cache=cache, token=token, host=host),
        host=host,
        port=port,
        doing=f"watching {counted(len(catalogue.runs()), 'run')}",
    )


def _filter(request: Request) -> EpisodeFilter:
    asked = request.query_params
    return EpisodeFilter(
        role=asked.get("role", ""),
        status=asked.get("status", ""),
        outcome=asked.get("outcome", ""),
        invalid=bool(asked.get("invalid")),
        said=asked.get("said", "")[:200],
        text=asked.get("text", "")[:200],
        step=number_of(request, "step"),
        cell=_cell(asked),
    )


def _order(request: Request) -> SortOrder:
    by = request.query_params.get("sort", "")[:200]
    return SortOrder(by=by, descending=not by or request.query_params.get("down") == "1")


def _tasks(request: Request) -> TaskQuery:
    asked = request.query_params
    return TaskQuery(
        part=asked.get("part", ""),
        group=asked.get("group", ""),
        task=asked.get("task", ""),
        words=asked.get("words", "")[:200],
        order=_order(request),
        page=number_of(request, "page") or 0,
    )


def _cell(asked: Mapping[str, str]) -> CellKey | None:
    """Return the cell of a table that an address names; None if it names none."""
    if not asked.get("view"):
        return None
    return CellKey(**{name: asked.get(name, "") for name in ("agent", "kind", "view", "action")})


def _table(request: Request) -> TableQuery:
    asked = request.query_params
    return TableQuery(
        sort=asked.get("sort", "")[:200],
        descending=asked.get("down") == "1",
        words=asked.get("words", "")[:200],
        seeds=asked.get("seeds") == "1",
    )


def _curves(request: Request) -> CurveQuery:
    asked = request.query_params
    window = number_of(request, "smooth")
    return CurveQuery(
        runs=tuple(asked.getlist("run")[: MOST_RUNS + 1]),
        metrics=tuple(dict.fromkeys(asked.getlist("metric")))[:MOST_PINS],
        first=number_of(request, "from"),
        last=number_of(request, "to"),
        window=None if window is None else max(window, 1),
        seeds=asked.get("seeds") == "1",
    )
