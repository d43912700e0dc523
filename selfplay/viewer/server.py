"""The web server of the viewer. Binds to loopback; anything else takes a token.

Pages are made here and hold no data of the browser's: a page that is left open asks whether there
is something new, and the answer is a line unless there is. How often it asks depends on what a
page costs to make, so that watching takes at most about 1/200 of one core.
"""

import hashlib
import hmac
import secrets
import socket
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from selfplay.errors import ConfigError, RunError
from selfplay.pages import template_text
from selfplay.viewer.catalogue import Catalogue
from selfplay.viewer.filter import Filter
from selfplay.viewer.pages import Pages

SHARE = 200
"""Seconds between two looks per second that making the page took."""
SOONEST = 5.0
"""Seconds that are waited at the least."""
COOKIE = "selfplay_token"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def application(
    catalogue: Catalogue, *, cache: Path, token: str = "", host: str = "127.0.0.1"
) -> Starlette:
    """The web application, for loopback's `host`, or for anybody who has the `token`.

    `cache` is where indexes of episodes go.
    """
    pages = Pages(catalogue, cache)

    def page(make: Callable[[Request], str]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            begun = time.process_time()
            try:
                return HTMLResponse(await run_in_threadpool(make, request))
            except (RunError, OSError, OverflowError, sqlite3.Error) as error:
                return HTMLResponse(pages.error(str(error)), status_code=404)
            finally:
                request.state.cost = time.process_time() - begun

        return answer

    def live(make: Callable[[Request], str]) -> Callable[[Request], Awaitable[Response]]:
        """A page that says when to look again, and whether there is anything new."""
        inner = page(make)

        async def answer(request: Request) -> Response:
            stamp = await run_in_threadpool(pages.stamp, request.path_params.get("run"))
            tag = f'"{hashlib.sha256(stamp.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers={"ETag": tag})
            response = await inner(request)
            wait = max(SHARE * request.state.cost, SOONEST)
            response.headers.update({"ETag": tag, "X-Look-Again": f"{wait:.0f}"})
            return response

        return answer

    def script(request: Request) -> Response:
        return Response(template_text("viewer.js"), media_type="text/javascript")

    routes = [
        Route("/", live(lambda request: pages.runs())),
        Route("/viewer.js", script),
        Route(
            "/compare",
            live(
                lambda request: pages.compare(
                    request.query_params.getlist("run"), request.query_params.get("section", "")
                )
            ),
        ),
        Route(
            "/run/{run}",
            live(
                lambda request: pages.run(
                    request.path_params["run"], request.query_params.get("section", "")
                )
            ),
        ),
        Route(
            "/run/{run}/episodes",
            page(
                lambda request: pages.episodes(
                    request.path_params["run"], _filter(request), _number(request, "page") or 0
                )
            ),
        ),
        Route(
            "/run/{run}/episodes/{step:int}/{line:int}",
            page(
                lambda request: pages.episode(
                    request.path_params["run"],
                    request.path_params["step"],
                    request.path_params["line"],
                    request.query_params.get("colour", ""),
                )
            ),
        ),
        Route(
            "/run/{run}/groups/{step:int}/{group}",
            page(
                lambda request: pages.group(
                    request.path_params["run"],
                    request.path_params["step"],
                    request.path_params["group"],
                )
            ),
        ),
        Route(
            "/run/{run}/league",
            page(lambda request: pages.league(request.path_params["run"])),
        ),
        Route(
            "/run/{run}/tasks",
            page(
                lambda request: pages.tasks(
                    request.path_params["run"],
                    request.query_params.get("type", ""),
                    _number(request, "number"),
                    _number(request, "page") or 0,
                )
            ),
        ),
    ]
    middleware = [Middleware(_Guard, token=token)]
    if not token:
        # A page elsewhere can have its own name resolve to this machine, and then read what a
        # loopback server says: only requests to loopback's own names are answered.
        names = ["127.0.0.1", "localhost", "[::1]", host]
        middleware.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=names))
    return Starlette(routes=routes, middleware=middleware)


class _Guard(BaseHTTPMiddleware):
    """Asks for the token, where there is one, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        super().__init__(app)
        self.token = token

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if self.token:
            asked = request.query_params.get("token", "")
            if hmac.compare_digest(asked.encode(), self.token.encode()):
                # Out of the address, where it would be seen and kept.
                response: Response = RedirectResponse(request.url.remove_query_params("token").path)
                response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
                response.headers.update(HEADERS)
                return response
            shown = request.cookies.get(COOKIE, "")
            if not hmac.compare_digest(shown.encode(), self.token.encode()):
                said = "selfplay: open the address with ?token=... that the server printed\n"
                return Response(said, status_code=403, media_type="text/plain", headers=HEADERS)
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response


def serve(catalogue: Catalogue, *, cache: Path, host: str, port: int) -> None:
    """Serve until interrupted; prints the address. Raises ConfigError if the port is taken."""
    import uvicorn

    token = "" if _is_loopback(host) else secrets.token_urlsafe(24)
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/{f'?token={token}' if token else ''}"
    print(f"watching {len(catalogue.runs())} runs at {address} (Ctrl-C ends it)")
    sys.stdout.flush()
    settings = uvicorn.Config(
        application(catalogue, cache=cache, token=token, host=host),
        log_level="warning",
        lifespan="off",
    )
    uvicorn.Server(settings).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # whoever reads the address may come before the server is up
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another with --port "
            "(0 takes any that is free)"
        ) from error
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _filter(request: Request) -> Filter:
    asked = request.query_params
    return Filter(
        role=asked.get("role", ""),
        status=asked.get("status", ""),
        outcome=asked.get("outcome", ""),
        invalid=bool(asked.get("invalid")),
        text=asked.get("text", "")[:200],
        step=_number(request, "step"),
    )


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
