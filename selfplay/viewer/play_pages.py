"""The page of a game that a person plays: the messages to the person's seat, and a form for a move.

A session has one game at a time, which runs on its own thread while the server answers requests.
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

from selfplay.credit.base import pay_by_agent
from selfplay.engines.human import HumanQuestion, news
from selfplay.errors import ConfigError, RunError, SelfplayError, one_line
from selfplay.experiment.human_play import PlaySetup, ending, table
from selfplay.run.declarations import RunMetrics, measured_by
from selfplay.run.report.html import render
from selfplay.run.report.transcripts import content, shorten, show
from selfplay.types import Episode, Message
from selfplay.viewer import web

Phase: TypeAlias = Literal["idle", "others", "yours", "left", "over", "broken"]
"""State of a session. idle: no game has started. others: another agent moves. yours: the person
moves. left: the person has left, and the other agents finish the game. over: the game has ended.
broken: an error ended the session."""


class MoveTooLate(RunError):
    """Raised for a move or a start that no longer fits the state of the session."""


class _Closed(Exception):
    """Raised if the server ends during a game."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The new messages to the person's seat at one move, and the answer."""

    shown: tuple[Message, ...]
    """The new messages."""
    legal: tuple[str, ...] = ()
    """Legal moves that the observation lists; empty if it lists none."""
    refused: str = ""
    """Reason why the previous text for this move is not a legal move; empty the first time."""
    said: str | None = None
    """The person's move; None until it is made."""


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """The state of a session, as far as the person's seat may see it."""

    phase: Phase = "idle"
    """Phase of the session."""
    number: int = 0
    """Number of the game, from 1; 0 before the first game."""
    agent: str = ""
    """The person's seat."""
    exchanges: tuple[Exchange, ...] = ()
    """The seat's messages and moves; messages to other seats are not among them."""
    episode: Episode | None = None
    """The whole game; None until it is over."""
    path: Path | None = None
    """File of the saved game; None if it is not saved, because the person left."""
    problem: str = ""
    """Error of a broken session."""

    @property
    def stamp(self) -> str:
        """Text that changes whenever the page changes."""
        return f"{self.number}.{self.phase}.{len(self.exchanges)}"


class PlaySession:
    """Plays the games of one person. Methods raise RunError, in one line, for refused requests."""

    def __init__(self, *, seed: int) -> None:
        """`seed`: seed of all games; each game derives its own random numbers from it."""
        self.seed = seed
        self._changed = threading.Condition()
        self._seen = SessionView()
        self._answer: str | None = None
        self._closed = False
        self._game: threading.Thread | None = None

    @property
    def seen(self) -> SessionView:
        """The session's present state."""
        with self._changed:
            return self._seen

    def ask(self, question: HumanQuestion) -> str | None:
        """Wait for the person's move and return it; None if the person has left. The human engine
        calls this on the game's thread."""
        with self._changed:
            if self._seen.phase == "left":
                return None
            exchange = Exchange(
                shown=() if question.refused else tuple(news(question.messages)),
                legal=tuple(question.legal),
                refused=question.refused,
            )
            self._set(phase="yours", exchanges=(*self._seen.exchanges, exchange))
            self._changed.wait_for(lambda: self._answer is not None or self._closed)
            if self._closed:
                raise _Closed
            text, self._answer = self._answer, None
            return None if self._seen.phase == "left" else text

    def begin(self, table: PlaySetup, agent: str, number: int) -> None:
        """Begin game `number`; a repeated request for the same game has no effect."""
        table.check(agent)
        with self._changed:
            if number == self._seen.number and self._seen.agent == agent:
                return
            if self._seen.phase not in ("idle", "over") or number != self._seen.number + 1:
                raise MoveTooLate("another game is in progress here")
            self._seen = SessionView(phase="others", number=number, agent=agent)
            self._game = threading.Thread(target=self._play, args=(table, agent), daemon=True)
            self._game.start()

    def move(self, number: int, turn: int, text: str) -> None:
        """Make the move of turn `turn` (from 1) of a game.

        The same move again has no effect, as when a button is pressed twice or a page is reloaded.
        Raises MoveTooLate for a different move, as when another window was faster.
        """
        with self._changed:
            exchanges = self._seen.exchanges
            if number == self._seen.number and 1 <= turn <= len(exchanges):
                if exchanges[turn - 1].said == text:
                    return
                if self._seen.phase == "yours" and exchanges[turn - 1].said is None:
                    self._answer = text
                    made = replace(exchanges[-1], said=text)
                    self._set(phase="others", exchanges=(*exchanges[:-1], made))
                    return
            raise MoveTooLate(
                "the game has continued since this page was shown; the move was not accepted"
            )

    def leave(self, number: int) -> None:
        """Leave a game: all its later moves are empty, and the game is not saved."""
        with self._changed:
            if number == self._seen.number and self._seen.phase in ("others", "yours"):
                asked = self._seen.phase == "yours"
                self._set(phase="left")
                if asked:
                    self._answer = ""

    def settle(self, seconds: float) -> None:
        """Wait until the other agents have moved, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._seen.phase not in ("others", "left"), seconds)

    def close(self) -> bool:
        """End the session; return True if this interrupts a game, which is then not saved."""
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
            with self._changed:  # saving and leaving exclude each other
                gone = self._closed or self._seen.phase == "left"
                path = None if gone else table.save(episode)
                self._set(phase="over", episode=episode, path=path)
        except _Closed:
            return
        except Exception as error:
            if self._closed:
                return  # the arena and its services were closed during the game
            fault = not isinstance(error, SelfplayError)
            if fault:  # the page shows the message, the terminal the traceback
                traceback.print_exc()
            self._break(one_line(error) if fault else str(error))

    def _break(self, problem: str) -> None:
        with self._changed:
            self._set(phase="broken", problem=" ".join(problem.split()))


SOON, LATER = 1, 5
"""Seconds between two polls of an open page: while others move, and while the person moves."""
PATIENCE = 0.5
"""Seconds that the answer to a form waits for the other agents, which often move at once."""
MOST_BUTTONS = 32
"""Largest number of legal moves that have a button; more are listed as text."""
LONGEST_SHOWN = 100_000
"""Largest number of characters shown of one message or move; the record has the whole text."""


class PlayPages:
    """Renders the pages of one session."""

    def __init__(self, place: PlaySetup, session: PlaySession, *, title: str, agent: str) -> None:
        """Args:
        place: Arena and players of the games.
        session: The session.
        title: Title of the pages.
        agent: The preselected seat; empty: none.
        """
        self.place, self.session, self.title, self.agent = place, session, title, agent
        self.seats, self.rules = place.seats(), place.rules()
        self.declared = RunMetrics(arena=measured_by(place.arena()))
        self.secret = secrets.token_urlsafe(24)
        """Secret field of every form, so that no other site can send one."""

    def game(self) -> tuple[str, SessionView]:
        """Render the game as the seat sees it; also return the state that the page shows."""
        seen = self.session.seen
        page = render(
            "viewer_play.html.jinja",
            title=self.title,
            seen=seen,
            exchanges=list(_shown(seen.exchanges)),
            paid=pay_by_agent(seen.episode) if seen.episode else {},
            seats=self.seats,
            rules=self.rules,
            ending=ending(seen.episode) if seen.episode else "",
            most=MOST_BUTTONS,
            chosen=seen.agent or self.agent,
            secret=self.secret,
            wait=SOON if seen.phase in ("others", "left") else LATER,
        )
        return page, seen

    def tag(self, seen: SessionView) -> str:
        """Return the ETag of a state, which differs between servers."""
        return web.tag_of(f"{self.secret}.{seen.stamp}")

    def record(self) -> str:
        """Render the whole game with all seats; raise RunError if it is not over."""
        episode = self.session.seen.episode
        if episode is None:
            raise RunError("the transcript of all seats is shown when the game is over")
        return render(
            "viewer_played.html.jinja",
            title="The whole game",
            episode=episode,
            turns=[show(turn, None, True, self.declared) for turn in episode.turns],
            agents=list(episode.agents()),
        )

    def problem(self, words: str, text: str = "") -> str:
        """Render the page of a refused request, with the text that would be lost."""
        return web.refused(words, back="/", text=text)


def _shown(exchanges: Sequence[Exchange]) -> Iterator[dict[str, Any]]:
    """Yield the texts of each exchange; repeated system messages are left out."""
    known: set[str] = set()
    for exchange in exchanges:
        new = [m for m in exchange.shown if m["role"] != "system" or content(m) not in known]
        known.update(content(message) for message in new if message["role"] == "system")
        yield {
            "messages": [
                (str(message["role"]), shorten(content(message), LONGEST_SHOWN)) for message in new
            ],
            "legal": exchange.legal,
            "refused": exchange.refused,
            "said": None if exchange.said is None else shorten(exchange.said, LONGEST_SHOWN),
        }


def application(pages: PlayPages, *, token: str = "", host: str = "127.0.0.1") -> Starlette:
    """Return the web application. `token`: token that a client needs; empty on loopback."""
    session = pages.session

    async def game(request: Request) -> Response:
        tag = pages.tag(session.seen)
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
        """Return the handler of a form: it redirects to the game, or shows the refusal."""

        async def answer(request: Request) -> Response:
            fields: Mapping[str, str] = {}
            try:
                fields = await web.form_of(request, pages.secret)
                await run_in_threadpool(act, fields)
                await run_in_threadpool(session.settle, PATIENCE)
            except (RunError, ConfigError) as error:
                page = pages.problem(str(error), fields.get("text", ""))
                return HTMLResponse(
                    page, status_code=409 if isinstance(error, MoveTooLate) else 403
                )
            return RedirectResponse("/", status_code=303)  # so that a reload does not repeat a move

        return answer

    def begin(fields: Mapping[str, str]) -> None:
        session.begin(pages.place, fields.get("agent", ""), _number(fields, "game"))

    def move(fields: Mapping[str, str]) -> None:
        # A browser sends line ends of a form as \r\n.
        text = fields.get("text", "").replace("\r\n", "\n")
        session.move(_number(fields, "game"), _number(fields, "turn"), text)

    def leave(fields: Mapping[str, str]) -> None:
        session.leave(_number(fields, "game"))

    routes = [
        Route("/", game),
        Route("/viewer.js", web.script("viewer.js")),
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
    """Serve the games of one person until interrupted, and print the address.

    `overrides` and `search` are those of `selfplay.experiment.human_play.table`. Raises ConfigError
    or RunError if there is no such run, arena or seat, or if the port is taken.
    """
    session = PlaySession(seed=seed)
    opened = table(target, ask=session.ask, script=against, overrides=overrides, search=search)
    with opened as place:
        if agent:
            place.check(agent)
        pages = PlayPages(place, session, title=f"A game of {target}", agent=agent)
        try:
            web.serve(
                lambda token: application(pages, token=token, host=host),
                host=host,
                port=port,
                doing="playing",
            )
        finally:
            if session.close():
                print("the unfinished game is not saved")


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RunError("not a form of this page")
    return int(text)
