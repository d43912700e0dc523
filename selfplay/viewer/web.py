"""What the local web servers share. They bind to loopback; anything else takes a token.

A browser shows pages of many sites at once. What another site's page can have it send here is
refused: a request under a foreign name for this machine, and a form that is not ours.
"""

import hashlib
import hmac
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from selfplay.errors import ConfigError, RunError
from selfplay.run.report.html import template_text

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with none at all, a browser hides where a form came from
    "Cache-Control": "no-store",
}
LONGEST_FORM = 16_000_000
"""Bytes of a form: a million characters as the longest escapes that there are, and room."""


def guards(token: str, host: str) -> list[Middleware]:
    """What stands before every page: of loopback's `host`, or for whoever has the `token`."""
    middleware = [Middleware(_Guard, token=token)]
    if not token:
        # A page elsewhere can have its own name resolve to this machine, and then read what a
        # loopback server says: only requests to loopback's own names are answered.
        names = ["127.0.0.1", "localhost", "[::1]", host]
        middleware.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=names))
    return middleware


def cookie_of(token: str) -> str:
    """The name of the cookie that holds a token.

    Browsers keep one store for all ports of a host: under one name, servers would overwrite each
    other's.
    """
    return f"selfplay_{hashlib.sha256(token.encode()).hexdigest()[:16]}"


class _Guard(BaseHTTPMiddleware):
    """Asks for the token, where there is one, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        super().__init__(app)
        self.token, self.cookie = token, cookie_of(token)

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if self.token:
            asked = request.query_params.get("token", "")
            if hmac.compare_digest(asked.encode(), self.token.encode()):
                # Out of the address, where it would be seen and kept.
                response: Response = RedirectResponse(request.url.remove_query_params("token").path)
                response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
                response.headers.update(HEADERS)
                return response
            shown = request.cookies.get(self.cookie, "")
            if not hmac.compare_digest(shown.encode(), self.token.encode()):
                said = "selfplay: open the address with ?token=... that the server printed\n"
                return Response(said, status_code=403, media_type="text/plain", headers=HEADERS)
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response


async def form_of(request: Request, secret: str) -> Mapping[str, str]:
    """The fields of a form that one of our own pages sent.

    Every form of ours carries `secret`, which no other site's page can read. Raises RunError for
    any other form, and for one that is longer than any that somebody could have written.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > LONGEST_FORM:
            raise RunError(f"more than {LONGEST_FORM:,} bytes: no move is as long as that")
    try:
        fields = dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=9))
    except ValueError as error:
        raise RunError("no form of this page") from error
    origin = request.headers.get("origin")
    ours = origin is None or origin == f"{request.url.scheme}://{request.headers.get('host')}"
    if not ours or not hmac.compare_digest(fields.get("form", "").encode(), secret.encode()):
        raise RunError("this form is not of the page as it is now; open it again and go on there")
    return fields


def tag_of(stamp: str) -> str:
    """What a browser is told that a page of this state is called."""
    return f'"{hashlib.sha256(stamp.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def script(request: Request) -> Response:
    """The script of all pages."""
    return Response(template_text("viewer.js"), media_type="text/javascript")


def serve(
    make: Callable[[str], Starlette], *, host: str, port: int, doing: str = "serving"
) -> None:
    """Serve what `make` makes of a token, until interrupted; prints the address.

    Raises ConfigError where nothing can listen there, such as on a port that is taken.
    """
    import uvicorn

    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    listener = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/{f'?token={token}' if token else ''}"
    print(f"{doing} at {address} (Ctrl-C ends it)")
    sys.stdout.flush()
    settings = uvicorn.Config(make(token), log_level="warning", lifespan="off")
    with suppress(KeyboardInterrupt):  # which is how it is ended
        uvicorn.Server(settings).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises ConfigError where none can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # whoever reads the address may come before the server is up
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or "no such port"
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}; choose another with --port "
            "(0 takes any that is free)"
        ) from error
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can come to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
