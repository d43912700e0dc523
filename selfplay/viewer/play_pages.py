"""The page of a game that a person plays: what the seat sees, and a form for its move.

A person at a table: one game at a time, played on a thread of its own while pages are shown.
"""

import secrets
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from selfplay.engines.human import news
from selfplay.errors import ConfigError, RunError, SelfplayError, one_line
from selfplay.experiment.human_play import PlaySetup, table
from selfplay.rollout.matches import returns
from selfplay.run.declarations import RunMetrics, measured_by
from selfplay.run.report.html import render
from selfplay.run.report.transcripts import content, shorten, show
from selfplay.types import Episode, Message
from selfplay.viewer import web

Phase: TypeAlias = Literal["idle", "others", "yours", "left", "over", "broken"]
"""idle: no game was begun. others: it is their move. yours: the person is asked. left: the person
has gone, and the game is being played out. over: it has ended. broken: nothing more can be played
here."""


class MoveTooLate(RunError):
    """A move for which the game has gone on since."""


class _Closed(Exception):
    """The server ends in the middle of a game."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What the seat was shown at one of its moves, and what it said."""

    shown: tuple[Message, ...]
    """The messages that are new."""
    said: str | None = None
    """Its words; None while it is asked."""


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """The game as the person's seat knows it."""

    phase: Phase = "idle"
    """Where it stands."""
    number: int = 0
    """Which game it is, from 1; 0 before the first."""
    agent: str = ""
    """The person's seat."""
    exchanges: tuple[Exchange, ...] = ()
    """All that the seat was shown and said, and nothing that it was not."""
    episode: Episode | None = None
    """The whole game, once it is over."""
    path: Path | None = None
    """Where it was saved; None where it was not, because the person left."""
    problem: str = ""
    """Why it is broken."""

    @property
    def stamp(self) -> str:
        """Another whenever there is something new."""
        return f"{self.number}.{self.phase}.{len(self.exchanges)}"


class PlaySession:
    """Plays the games of one person. What its methods refuse is a RunError in one line."""

    def __init__(self, *, seed: int) -> None:
        """`seed` is of all games; each draws its own chances from it."""
        self.seed = seed
        self._changed = threading.Condition()
        self._seen = SessionView()
        self._answer: str | None = None
        self._closed = False
        self._game: threading.Thread | None = None

    @property
    def seen(self) -> SessionView:
        """The game as it is now."""
        with self._changed:
            return self._seen

    def ask(self, agent: str, messages: Sequence[Message]) -> str:
        """What a person as an engine asks with: waits for the move. On the game's thread."""
        with self._changed:
            if self._seen.phase == "left":
                return ""
            exchange = Exchange(shown=tuple(news(messages)))
            self._set(phase="yours", exchanges=(*self._seen.exchanges, exchange))
            self._changed.wait_for(lambda: self._answer is not None or self._closed)
            if self._closed:
                raise _Closed
            text, self._answer = self._answer, None
            assert text is not None
            return text

    def begin(self, table: PlaySetup, agent: str, number: int) -> None:
        """Begin game `number`; asked again for one that was begun already, nothing happens."""
        table.check(agent)
        with self._changed:
            if number == self._seen.number and self._seen.agent == agent:
                return
            if self._seen.phase not in ("idle", "over") or number != self._seen.number + 1:
                raise MoveTooLate("another game goes on at this table")
            self._seen = SessionView(phase="others", number=number, agent=agent)
            self._game = threading.Thread(target=self._play, args=(table, agent), daemon=True)
            self._game.start()

    def move(self, number: int, turn: int, text: str) -> None:
        """The words of turn `turn` (from 1) of a game.

        The same words a second time change nothing: a button was pressed twice, or a page loaded
        again. Others are Late: another window was faster.
        """
        with self._changed:
            mine = self._seen.exchanges
            if number == self._seen.number and 1 <= turn <= len(mine):
                if mine[turn - 1].said == text:
                    return
                if self._seen.phase == "yours" and mine[turn - 1].said is None:
                    self._answer = text
                    made = replace(mine[-1], said=text)
                    self._set(phase="others", exchanges=(*mine[:-1], made))
                    return
            raise MoveTooLate(
                "the game has gone on since this page was shown; the move was not taken"
            )

    def leave(self, number: int) -> None:
        """Leave a game: whatever it still asks is answered with nothing, and it is not saved."""
        with self._changed:
            if number == self._seen.number and self._seen.phase in ("others", "yours"):
                asked = self._seen.phase == "yours"
                self._set(phase="left")
                if asked:
                    self._answer = ""

    def settle(self, seconds: float) -> None:
        """Wait until it is not the others' move any more, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._seen.phase not in ("others", "left"), seconds)

    def close(self) -> bool:
        """End; whether the person was in a game, which is not saved."""
        with self._changed:
            self._closed = True
            playing = self._seen.phase in ("others", "yours")
            self._changed.notify_all()
        if self._game is not None:
            self._game.join(5.0)
        return playing

    def _set(self, **fields: object) -> None:
        self._seen = replace(self._seen, **fields)  # type: ignore[arg-type]
        self._changed.notify_all()

    def _play(self, table: PlaySetup, agent: str) -> None:
        try:
            episode = table.game(agent, seed=self.seed, number=self.seen.number - 1)
            with self._changed:  # whoever leaves meanwhile is told that it is not saved
                gone = self._closed or self._seen.phase == "left"
                path = None if gone else table.save(episode)
                self._set(phase="over", episode=episode, path=path)
        except _Closed:
            return
        except Exception as error:
            if self._closed:
                return  # the arena and its services were closed under the game
            fault = not isinstance(error, SelfplayError)
            if fault:  # its page says so, the terminal says where
                traceback.print_exc()
            self._break(one_line(error) if fault else str(error))

    def _break(self, problem: str) -> None:
        with self._changed:
            self._set(phase="broken", problem=" ".join(problem.split()))


SOON, LATER = 1, 5
"""Seconds between two looks of an open page: while others move, and while the person is asked."""
PATIENCE = 0.5
"""Seconds that a form's answer waits for the others, who are often done at once."""
LONGEST_SHOWN = 100_000
"""Characters of what a seat is shown or said that its page has; the record keeps all of them."""


class PlayPages:
    """Makes the pages of one table."""

    def __init__(self, place: PlaySetup, sitting: PlaySession, *, title: str, agent: str) -> None:
        """`agent` is the seat that is offered first; it may be empty."""
        self.place, self.sitting, self.title, self.agent = place, sitting, title, agent
        self.seats = place.seats()
        self.declared = RunMetrics(arena=measured_by(place.arena()))
        self.secret = secrets.token_urlsafe(24)
        """What every form carries, so that no other site can send one."""

    def game(self) -> tuple[str, SessionView]:
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

    def tag(self, seen: SessionView) -> str:
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
                return HTMLResponse(
                    page, status_code=409 if isinstance(error, MoveTooLate) else 403
                )
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

    `overrides` and `search` are those of `selfplay.experiment.human_play.table`.

    Raises ConfigError or RunError where there is no such run, arena or seat, or the port is taken.
    """
    sitting = PlaySession(seed=seed)
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
