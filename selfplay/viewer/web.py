"""Shared parts of the local web servers. A server on any other address than loopback needs a token.

Pages of other sites in the same browser can send requests to these servers. Two kinds of such
requests are refused: those with a foreign host name for this machine, and forms without the secret
of the server's own pages.
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
from selfplay.run.report.html import render, template_text

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without a referrer, a browser hides the origin of a form
    "Cache-Control": "no-store",
}
LONGEST_FORM = 16_000_000
"""Largest number of bytes of a form: a million characters as the longest escapes, and a margin."""


def guards(token: str, host: str) -> list[Middleware]:
    """Return the middleware of all pages: a check of the token, or of the host name without one."""
    middleware = [Middleware(_Guard, token=token)]
    if not token:
        # Another site can let its name resolve to this machine and read the answers of a loopback
        # server (DNS rebinding), so only requests to loopback's own names are answered.
        names = ["127.0.0.1", "localhost", "[::1]", host]
        middleware.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=names))
    return middleware


def cookie_of(token: str) -> str:
    """Return the name of the cookie that holds a token.

    The name depends on the token, because browsers share cookies between all ports of a host:
    several servers would overwrite a common cookie.
    """
    return f"selfplay_{hashlib.sha256(token.encode()).hexdigest()[:16]}"


class _Guard(BaseHTTPMiddleware):
    """Checks the token, if there is one, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        super().__init__(app)
        self.token, self.cookie = token, cookie_of(token)

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if self.token:
            asked = request.query_params.get("token", "")
            if hmac.compare_digest(asked.encode(), self.token.encode()):
                # Remove the token from the address, which is visible and stays in the history.
                left = request.url.remove_query_params("token")
                response: Response = RedirectResponse(f"{left.path}?{left.query}".rstrip("?"))
                response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
                response.headers.update(HEADERS)
                return response
            shown = request.cookies.get(self.cookie, "")
            if not hmac.compare_digest(shown.encode(), self.token.encode()):
                text = "selfplay: open the address with ?token=... that the server printed\n"
                return Response(text, status_code=403, media_type="text/plain", headers=HEADERS)
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response


async def form_of(request: Request, secret: str) -> Mapping[str, str]:
    """Return the fields of a form that a page of this server sent; see `fields_of`."""
    return dict(await fields_of(request, secret))


async def fields_of(request: Request, secret: str, *, most: int = 9) -> list[tuple[str, str]]:
    """Return the (name, text) pairs of a form that a page of this server sent.

    Every form of this server has the field `secret`, which pages of other sites cannot read. Raises
    RunError for any other form, and for a form of more than `LONGEST_FORM` bytes or `most` fields.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > LONGEST_FORM:
            raise RunError(f"the form has more than {LONGEST_FORM:,} bytes; send a shorter move")
    try:
        fields = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=most)
    except ValueError as error:
        raise RunError("not a form of this page") from error
    origin = request.headers.get("origin")
    ours = origin is None or origin == f"{request.url.scheme}://{request.headers.get('host')}"
    given = dict(fields).get("form", "")
    if not ours or not hmac.compare_digest(given.encode(), secret.encode()):
        raise RunError("this form is from an older page; open the page again and continue there")
    return fields


def refused(problem: str, *, back: str, text: str = "") -> str:
    """Render the page of a refused form.

    Args:
        problem: Reason, in one line.
        back: Address of the page that the form is on.
        text: Text of the person that would be lost otherwise.
    """
    title = "Not done"
    return render("viewer_refused.html.jinja", title=title, problem=problem, back=back, text=text)


def tag_of(stamp: str) -> str:
    """Return the ETag of a page in a state."""
    return f'"{hashlib.sha256(stamp.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def script(name: str) -> Callable[[Request], Response]:
    """Return the handler that serves a script of the package."""

    def answer(request: Request) -> Response:
        return Response(template_text(name), media_type="text/javascript")

    return answer


def serve(
    make: Callable[[str], Starlette], *, host: str, port: int, doing: str = "serving"
) -> None:
    """Serve an application until interrupted, and print its address.

    `make` receives the token, empty on loopback, and returns the application. Raises ConfigError
    if the address cannot be used, for example because the port is taken.
    """
    import uvicorn

    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    listener = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/{f'?token={token}' if token else ''}"
    print(f"{doing} at {address} (Ctrl-C ends it)")
    sys.stdout.flush()
    settings = uvicorn.Config(make(token), log_level="warning", lifespan="off")
    with suppress(KeyboardInterrupt):  # the usual way to stop the server
        uvicorn.Server(settings).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; raise ConfigError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # a client may connect before the server is up
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or "no such port"
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}; choose another with --port "
            "(0 takes any free port)"
        ) from error
    except (TypeError, UnicodeError) as error:  # the host cannot be encoded for a look-up
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}: no such host; choose another with --host"
        ) from error
    return listener


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
