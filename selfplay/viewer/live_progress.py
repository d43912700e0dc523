"""The present work of a run that is training, from the `progress.json` in its folder."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from selfplay.errors import RunError
from selfplay.run.activity import FILE, study_file, tally_words
from selfplay.run.formatting import duration
from selfplay.run.report.html import render
from selfplay.run.untrusted import open_regular
from selfplay.viewer.catalog import ListedRun, RunCatalogue
from selfplay.viewer.requests import PollLimiter, as_data, as_json, run_of

SOONEST = 2.0
"""Shortest interval between two polls of the present work, in seconds."""
SILENCE = 10.0
"""Seconds after which the process of a study that writes nothing counts as ended."""
LARGEST = 2**16
"""Size in bytes up to which the file is read."""
MOST_TALLIES = 8
"""Largest number of tallies that are shown."""

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Seconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=200)]


@dataclass(frozen=True, kw_only=True)
class LiveTally:
    """Pieces of work of one kind, see `selfplay.run.activity.Tally`."""

    unit: _Text
    """Name of the pieces, in the plural."""
    done: _Count
    """Number of completed pieces."""
    total: _Count
    """Number of pieces."""
    tokens: _Count
    """Number of tokens that were sampled for them."""
    since: _Seconds
    """Beginning of the work, in seconds since the epoch."""

    def words(self, now: float) -> str:
        """Return the completed work, the tokens per second and the time left."""
        return tally_words(self.unit, self.done, self.total, self.tokens, now - self.since)


@dataclass(frozen=True, kw_only=True)
class LiveProgress:
    """The content of `progress.json`; times in seconds since the epoch."""

    time: _Seconds
    """Time at which the file was written."""
    phase: _Text
    """Phase of the run, such as "warm start" or "rollout"."""
    since: _Seconds
    """Beginning of the phase."""
    tallies: list[LiveTally]
    """Work that is under way."""
    notes: list[_Text] = field(default_factory=list)
    """Lines that stay, such as that a warm start came from the cache."""
    step: _Count = 0
    """Number of completed steps."""
    steps: _Count = 0
    """Number of steps of the run."""
    seconds_left: _Seconds | None = None
    """Seconds until the end of the run; None before the first step."""

    @property
    def step_words(self) -> str:
        """Number of completed steps, and the time left."""
        left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return f"step {self.step} of {self.steps}{left}"

    @property
    def phase_words(self) -> str:
        """Phase, and how long it has lasted."""
        return f"{self.phase}, for {duration(max(self.time - self.since, 0.0))}"

    @property
    def bars(self) -> list[tuple[str, int, int]]:
        """Words, number done and total of each tally."""
        shown = self.tallies[:MOST_TALLIES]
        return [(each.words(self.time), each.done, each.total) for each in shown]

    @property
    def short(self) -> str:
        """One line: the phase and its first tally."""
        return ", ".join([self.phase, *(words for words, _, _ in self.bars[:1])])


_CONTENT: TypeAdapter[LiveProgress] = TypeAdapter(LiveProgress)


def read_progress(folder: Path, file_name: str = FILE) -> LiveProgress | None:
    """Return the present work of a run; None if the file is missing or damaged.

    Args:
        folder: The run folder.
        file_name: Name of the file in it, such as that of a study.
    """
    try:
        with open_regular(folder / file_name, root=folder) as file:
            return _CONTENT.validate_json(file.read(LARGEST))
    except (OSError, RunError, ValidationError):
        return None


def render_progress(run: ListedRun, *, short: bool = False) -> str:
    """Render the part of a page that shows the present work; empty unless the run is training.

    `short` gives one line without bars.
    """
    progress = read_progress(run.folder) if run.state == "training" else None
    if progress is None:
        return ""
    return render("viewer_progress.html.jinja", progress=progress, short=short)


def render_study_progress(run: ListedRun, measure: str) -> str:
    """Render the present work of a study; empty if its process writes none, or has ended."""
    progress = read_progress(run.folder, f"studies/{study_file(measure)}")
    if progress is None or time.time() - progress.time > SILENCE:
        return ""
    return render("viewer_progress.html.jinja", progress=progress, short=False)


def progress_data(run: ListedRun) -> dict[str, Any]:
    """Return name, state and present work of a run as plain data.

    There is no key `progress` unless the run is training.
    """
    progress = read_progress(run.folder) if run.state == "training" else None
    shown = {} if progress is None else {"progress": progress}
    return {"run": run.name, "state": run.state, **shown}


def progress_routes(catalogue: RunCatalogue) -> list[Route]:
    """Return the routes of the part of a page that shows the present work, and of its data.

    An open page asks for this part more often than for the whole page.
    """
    limiter = PollLimiter(soonest=SOONEST)

    def shown(request: Request) -> Response:
        begun = time.process_time()
        short = request.query_params.get("short") == "1"
        response = HTMLResponse(render_progress(catalogue.run(run_of(request)), short=short))
        wait = limiter.wait(time.process_time() - begun, time.monotonic())
        response.headers["X-Look-Again"] = f"{wait:.0f}"
        return response

    return [
        Route("/run/{run}/progress", as_json(shown)),
        Route(
            "/run/{run}/progress.json",
            as_json(lambda request: as_data(progress_data(catalogue.run(run_of(request))))),
        ),
    ]
