"""Fields of requests, and answers of the pages."""

import sqlite3
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Any, TypeAlias

from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from selfplay.errors import RunError
from selfplay.run.record_reader import DIGITS
from selfplay.run.report.html import visible

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

SHARE = 300
"""Wall-clock seconds per second of work for all open pages together, without those of curves."""
SOONEST = 5.0
"""Shortest interval between two polls of a page, in seconds."""


class PollLimiter:
    """Sets the interval at which open pages poll, so that their total cost stays limited."""

    def __init__(self, share: float = SHARE, *, soonest: float = SOONEST) -> None:
        """Args:
        share: Wall-clock seconds per second of work.
        soonest: Shortest interval between two polls, in seconds.
        """
        self._share, self._soonest = share, soonest
        self._free = 0.0
        self._lock = Lock()

    def wait(self, cost: float, now: float) -> float:
        """Return the seconds until the next poll of a page whose answer took `cost` seconds."""
        with self._lock:
            self._free = max(self._free, now) + self._share * cost
            return max(self._free - now, self._soonest)


def as_data(data: Any) -> Response:
    """Return data as JSON; a number that is not finite becomes null."""
    return Response(to_json(data, inf_nan_mode="null"), media_type="application/json")


def as_json(make: Callable[[Request], Response]) -> Handler:
    """Return the handler that answers with an error as JSON if there is no answer."""

    async def handle(request: Request) -> Response:
        try:
            return await run_in_threadpool(make, request)
        except (RunError, OSError, OverflowError, sqlite3.Error) as error:
            return JSONResponse({"error": str(visible(str(error)))}, status_code=404)

    return handle


def run_of(request: Request) -> str:
    """Return the name of the run in the address."""
    return str(request.path_params["run"])


def place_of(request: Request, name: str) -> int:
    """Return a number in the address; raise RunError if no run can have it."""
    text = request.path_params[name]
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS):
        raise RunError(f"no such {name} here: {text[:20]!r}")
    return int(text)


def number_of(request: Request, name: str) -> int | None:
    """Return a number of the query; None if it is absent or no number."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
