"""The page of a game that a person plays: what the seat sees, and a form for its move."""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from selfplay.declared import Declared, measured_by
from selfplay.errors import ConfigError, RunError
from selfplay.pages import render
from selfplay.play import Table, table
from selfplay.transcripts import content, shorten, show
from selfplay.versus import returns
from selfplay.viewer import web
from selfplay.viewer.sitting import Exchange, Late, Seen, Sitting

SOON, LATER = 1, 5
"""Seconds between two looks of an open page: while others move, and while the person is asked."""
PATIENCE = 0.5
"""Seconds that a form's answer waits for the others, who are often done at once."""
LONGEST_SHOWN = 100_000
"""Characters of what a seat is shown or said that its page has; the record keeps all of them."""


class PlayPages:
    """Makes the pages of one table."""

    def __init__(self, place: Table, sitting: Sitting, *, title: str, agent: str) -> None:
        """`agent` is the seat that is offered first; it may be empty."""
        self.place, self.sitting, self.title, self.agent = place, sitting, title, agent
        self.seats = place.seats()
        self.declared = Declared(arena=measured_by(place.arena()))
        self.secret = secrets.token_urlsafe(24)
        """What every form carries, so that no other site can send one."""

    def game(self) -> tuple[str, Seen]:
        """The game as the seat sees it, and what the page was made of."""
        seen = self.sitting.seen
        page = render(
            "viewer_play.html.jinja",
            title=self.title,
            seen=seen,
            exchanges=list(_shown(seen.exchanges)),
            paid=returns(seen.episode) if seen.episode else {},
            seats=self.seats,
            chosen=seen.agent or self.agent,
            secret=self.secret,
            wait=SOON if seen.phase in ("others", "left") else LATER,
        )
        return page, seen

    def tag(self, seen: Seen) -> str:
        """What this state is called, here and by no other server that a page was open on."""
        return web.tag_of(f"{self.secret}.{seen.stamp}")

    def record(self) -> str:
        """The whole game, all seats, once it is over. Raises RunError before."""
        episode = self.sitting.seen.episode
        if episode is None:
            raise RunError("what the other seats saw and said is shown when the game is over")
        return render(
            "viewer_played.html.jinja",
            title="The whole game",
            episode=episode,
            turns=[show(turn, None, True, self.declared) for turn in episode.turns],
            agents=list(episode.agents()),
        )

    def problem(self, words: str, text: str = "") -> str:
        """The page that says what was refused, with the words that would be lost."""
        return render("viewer_refused.html.jinja", title="Not done", problem=words, text=text)


def _shown(exchanges: Sequence[Exchange]) -> Iterator[dict[str, Any]]:
    """What was new to the seat each time; instructions that it was given before are left out."""
    known: set[str] = set()
    for exchange in exchanges:
        new = [m for m in exchange.shown if m["role"] != "system" or content(m) not in known]
        known.update(content(message) for message in new if message["role"] == "system")
        yield {
            "messages": [
                (str(message["role"]), shorten(content(message), LONGEST_SHOWN)) for message in new
            ],
            "said": None if exchange.said is None else shorten(exchange.said, LONGEST_SHOWN),
        }


def application(pages: PlayPages, *, token: str = "", host: str = "127.0.0.1") -> Starlette:
    """The web application, for loopback's `host`, or for anybody who has the `token`."""
    sitting = pages.sitting

    async def game(request: Request) -> Response:
        tag = pages.tag(sitting.seen)
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        page, seen = await run_in_threadpool(pages.game)
        wait = SOON if seen.phase in ("others", "left") else LATER
        headers = {"ETag": pages.tag(seen), "X-Look-Again": str(wait)}
        return HTMLResponse(page, headers=headers)

    async def record(request: Request) -> Response:
        try:
            return HTMLResponse(await run_in_threadpool(pages.record))
        except RunError as error:
            return HTMLResponse(pages.problem(str(error)), status_code=404)

    def takes(
        act: Callable[[Mapping[str, str]], None],
    ) -> Callable[[Request], Awaitable[Response]]:
        """A form's answer: back to the game, or what was refused."""

        async def answer(request: Request) -> Response:
            fields: Mapping[str, str] = {}
            try:
                fields = await web.form_of(request, pages.secret)
                await run_in_threadpool(act, fields)
                await run_in_threadpool(sitting.settle, PATIENCE)
            except (RunError, ConfigError) as error:
                page = pages.problem(str(error), fields.get("text", ""))
                return HTMLResponse(page, status_code=409 if isinstance(error, Late) else 403)
            return RedirectResponse("/", status_code=303)  # a page loaded again sends no move

        return answer

    def begin(fields: Mapping[str, str]) -> None:
        sitting.begin(pages.place, fields.get("agent", ""), _number(fields, "game"))

    def move(fields: Mapping[str, str]) -> None:
        # A form ends lines as the network does.
        text = fields.get("text", "").replace("\r\n", "\n")
        sitting.move(_number(fields, "game"), _number(fields, "turn"), text)

    def leave(fields: Mapping[str, str]) -> None:
        sitting.leave(_number(fields, "game"))

    routes = [
        Route("/", game),
        Route("/viewer.js", web.script),
        Route("/record", record),
        Route("/begin", takes(begin), methods=["POST"]),
        Route("/move", takes(move), methods=["POST"]),
        Route("/leave", takes(leave), methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=web.guards(token, host))


def serve(
    target: str,
    *,
    agent: str,
    against: str,
    seed: int,
    host: str,
    port: int,
    overrides: Sequence[str] = (),
    search: Sequence[str] = (),
) -> None:
    """Serve a table until interrupted; prints the address.

    `overrides` and `search` are those of `selfplay.play.table`.

    Raises ConfigError or RunError where there is no such run, arena or seat, or the port is taken.
    """
    sitting = Sitting(seed=seed)
    opened = table(target, ask=sitting.ask, script=against, overrides=overrides, search=search)
    with opened as place:
        if agent:
            place.check(agent)
        pages = PlayPages(place, sitting, title=f"A game of {target}", agent=agent)
        try:
            web.serve(
                lambda token: application(pages, token=token, host=host),
                host=host,
                port=port,
                doing="a seat is free",
            )
        finally:
            if sitting.close():
                print("the game that was being played is not saved")


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RunError("no form of this page")
    return int(text)
