"""The table of runs: settings that differ, progress and health of each run, from its own files."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selfplay.errors import RunError
from selfplay.run.declarations import FRACTION, RunMetrics, read_declared
from selfplay.run.formatting import as_of, format_value
from selfplay.run.metrics import of_troubles
from selfplay.run.record_reader import DamagedLines, read_metrics
from selfplay.run.report.html import visible
from selfplay.run.run_folder import CONFIG, METRICS, REPORT, STUDIES
from selfplay.run.sessions import read_sessions
from selfplay.run.tags import read_tags
from selfplay.study.stats.bootstrap import Estimate, over_runs
from selfplay.types import Metric
from selfplay.viewer.catalog import ListedRun, RunCatalogue
from selfplay.viewer.metric_columns import stamp_of
from selfplay.viewer.run_configs import FlatConfig, RunConfigs, chief_keys, differing
from selfplay.viewer.saved_games import SavedGames

MOST_METRICS = 6
"""Largest number of metrics of a run in the table."""
MOST_KEYS = 12
"""Largest number of differing keys in the table."""
PACE = 20
"""Number of latest steps whose time predicts the time that is left."""
COLUMNS = (
    *("run", "state", "seed", "date", "steps", "left", "timeouts", "failed", "malformed", "code"),
)
"""Columns by which the table is sorted, besides keys of the configs."""


@dataclass(frozen=True, kw_only=True)
class RunHealth:
    """Counts of faults in a run, and rules on collapse that fired."""

    timeouts: int = 0
    """Number of program runs that were out of time."""
    failed: int = 0
    """Number of failed episodes, with those of evaluations."""
    malformed: float | None = None
    """Largest fraction, over the roles, of moves without a valid action, each at the role's newest
    step with this metric; None if no role has it."""
    alarms: Mapping[str, int] = field(default_factory=dict)
    """Rule on collapse to the last step at which it fired."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A run in the table."""

    name: str
    """The run's name."""
    state: str
    """State of the run."""
    date: str
    """Time at which the config was written, as YYYY-MM-DD HH:MM in local time; empty if unknown."""
    steps: int = 0
    """The newest step."""
    total: int | None = None
    """Number of steps that the config asks for; None if it does not say."""
    left: float | None = None
    """Predicted seconds until the end; None unless the run is being trained."""
    health: RunHealth = RunHealth()
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Main metrics (see `RunMetrics.order`) to the text of their latest value."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The same metrics as numbers."""
    config: FlatConfig = field(default_factory=dict, repr=False)
    """Dotted key to value."""
    group: str = ""
    """Text that is equal for runs which differ only in the seed."""
    pages: tuple[str, ...] = ()
    """Names of the static pages in the run folder; see `static_pages`."""
    tags: tuple[str, ...] = ()
    """Tags of the run, sorted."""
    code: str = ""
    """Version of the code of the latest session; see `Session.code`."""
    sweep: str = ""
    """Name of the folder of the run's sweep; empty without one."""
    units: Mapping[str, Metric] = field(default_factory=dict, repr=False)
    """Main metrics to their unit and direction."""
    problem: str = ""
    """One line about a file that cannot be read; empty if all can."""

    @property
    def seed(self) -> str:
        """The seed; empty without one."""
        return self.config.get("seed", "")

    def value(self, column: str) -> Any:
        """Return the value of a column, or of a config key; None if the run has none."""
        if column in ("timeouts", "failed", "malformed"):
            return getattr(self.health, column)
        if column in COLUMNS:
            return getattr(self, "name" if column == "run" else column)
        return self.config.get(column)


@dataclass(frozen=True, kw_only=True)
class TableQuery:
    """Order and filter of the table. All fields come from the address."""

    sort: str = ""
    """Column or config key; empty: the newest run first."""
    descending: bool = False
    """True for the largest value first."""
    words: str = ""
    """Words that a run must have in name, state, `key=value`, `tag:NAME` or `alarm`."""
    seeds: bool = False
    """True to list runs that differ only in the seed under one line."""


@dataclass(frozen=True, kw_only=True)
class RunListing:
    """The table of a request."""

    keys: list[str]
    """Config keys that differ between the listed runs (see `chief_keys`), at most `MOST_KEYS`."""
    omitted: int
    """Number of further keys that differ."""
    groups: list[list[TableRow]]
    """Rows by group; groups of one row unless seeds are grouped."""
    left_out: list[str]
    """Lines about runs that are not listed."""

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON data."""
        runs = [
            {**_plain(row), "group": number, "config": {k: row.config.get(k) for k in self.keys}}
            | {"seed": row.seed}
            for number, rows in enumerate(self.groups)
            for row in rows
        ]
        means = [[each.to_json() for each in means_of(rows)] for rows in self.groups]
        return {
            "keys": self.keys,
            "omitted_keys": self.omitted,
            "runs": runs,
            "means": means,
            "left_out": self.left_out,
        }


def _plain(row: TableRow) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name != "units"}


def means_of(rows: Sequence[TableRow]) -> list[Estimate]:
    """Return the means of the main metrics that all runs of a group have.

    Their intervals are Student's over the runs; those of fractions are cut to [0, 1]. A group of
    one run has no means.
    """
    if len(rows) < 2:
        return []
    ends = {True: (0.0, 1.0), False: (-math.inf, math.inf)}
    return [
        over_runs(key, [row.values[key] for row in rows], bounds=ends[unit.unit == FRACTION.unit])
        for key, unit in rows[0].units.items()
        if all(key in row.values for row in rows)
    ]


def mean_text(rows: Sequence[TableRow], mean: Estimate) -> str:
    """Return a mean of a group and its interval as text, with the metric's unit."""
    unit = rows[0].units[mean.name]
    ends = [format_value(unit, end) for end in (mean.low, mean.high)]
    return f"{format_value(unit, mean.value)} ({ends[0]} to {ends[1]})"


class RunTable:
    """Reads the rows of the table. A row is computed again only after a change of its files."""

    def __init__(self, catalogue: RunCatalogue) -> None:
        self.catalogue = catalogue
        self.configs = RunConfigs()
        self._rows: dict[Path, tuple[str, TableRow]] = {}

    def listing(self, asked: TableQuery) -> RunListing:
        """Return the table in the order, and with the runs, that a query asks for."""
        rows = [self._row(run) for run in self.catalogue.runs()]
        configs = [row.config for row in rows if row.config]
        keys = differing(configs)
        chosen = [row for row in rows if _matches(row, keys, asked.words)]
        shown = [row.config for row in chosen if row.config]
        differ = differing(shown)
        keys = chief_keys(differ, shown) if differ else chief_keys(keys, configs)
        if asked.sort:
            known = [row for row in chosen if row.value(asked.sort) not in (None, "")]
            unknown = [row for row in chosen if row.value(asked.sort) in (None, "")]
            known.sort(key=lambda row: _order(row.value(asked.sort)), reverse=asked.descending)
            chosen = [*known, *unknown]
        groups: dict[str, list[TableRow]] = {}
        for row in chosen:
            groups.setdefault(row.group if asked.seeds else row.name, []).append(row)
        return RunListing(
            keys=keys[:MOST_KEYS],
            omitted=len(keys[MOST_KEYS:]),
            groups=list(groups.values()),
            left_out=[str(visible(line)) for line in self.catalogue.left_out()],
        )

    def compared(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the configs of 2 to 8 runs, by name, as plain data.

        "runs" has their names, "different" the values of each run by key that differs, and "equal"
        the common value by key that does not. Raises RunError for an unknown run, for another
        number of runs, and if a config cannot be read.
        """
        runs = [self.catalogue.run(name) for name in dict.fromkeys(names)]
        if not 1 < len(runs) <= 8:
            raise RunError(f"choose from 2 to 8 runs to compare, not {len(runs)}")
        configs = [self.configs.read(run.folder) for run in runs]
        keys = sorted({key for config in configs for key in config})
        lines = {key: [config.get(key) for config in configs] for key in keys}
        different = {key: values for key, values in lines.items() if len(set(values)) > 1}
        return {
            "runs": [run.name for run in runs],
            "different": different,
            "equal": {key: values[0] for key, values in lines.items() if key not in different},
        }

    def _row(self, run: ListedRun) -> TableRow:
        config = stamp_of(run.folder / CONFIG)
        stamp = f"{run.name}.{run.stamp}.{config}.{static_pages(run.folder)}"
        if self._rows.get(run.folder, ("",))[0] != stamp:
            self._rows[run.folder] = (stamp, self._read(run))
        return self._rows[run.folder][1]

    def _read(self, run: ListedRun) -> TableRow:
        """Compute the row of a run; a damaged run has its error there."""
        made = _date(run.folder)
        if run.state == "games":
            count = len(SavedGames(run.games).names())
            metrics = {"games of a person": f"{count:,}"}
            return TableRow(
                name=run.name, state="games", date=made, metrics=metrics, group=run.name
            )
        problem, config, tags, code = "", {}, tuple[str, ...](), ""
        rows: dict[int, dict[str, float]] = {}
        declared = RunMetrics()
        try:
            declared = read_declared(run.folder)
            damaged = DamagedLines()
            rows = read_metrics(run.folder / METRICS, damaged=damaged)
            problem = damaged.text(run.folder)
            config = dict(self.configs.read(run.folder))
            tags = read_tags(run.folder)
            code = next((each.code for each in reversed(read_sessions(run.folder))), "")
        except RunError as error:
            problem = f"{problem}; {error}" if problem else str(error)
        sweep = self.catalogue.sweep_of(run)
        newest, total = max(rows, default=0), _whole(config.get("run.steps", ""))
        texts, values = _chief(rows, declared)
        return TableRow(
            name=run.name,
            state=run.state,
            date=made,
            steps=newest,
            total=total,
            left=_left(rows, newest, total) if run.state == "training" else None,
            health=_health(rows),
            metrics=texts,
            values=values,
            units={key: declared.of(key) for key in values},
            tags=tags,
            code=code,
            sweep="" if sweep is None else str(visible(sweep.name)),
            config=config,
            group=self.configs.group(run.folder),
            pages=static_pages(run.folder),
            problem=problem,
        )


def static_pages(run: Path) -> tuple[str, ...]:
    """Return the static pages of a run: `report.html`, and pages of studies, at most 50."""
    try:
        studies = sorted(path.name for path in (run / STUDIES).glob("*.html"))
    except OSError:
        studies = []
    found = [REPORT] if (run / REPORT).is_file() else []
    return tuple([*found, *(f"{STUDIES}/{name}" for name in studies if name.isprintable())][:50])


def _date(run: Path) -> str:
    try:
        made = (run / CONFIG).stat().st_mtime
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(made))
    except (OSError, OverflowError, ValueError):
        return ""


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 13 else None


def _left(rows: Mapping[int, Mapping[str, float]], newest: int, total: int | None) -> float | None:
    """Predict the seconds until the end from the latest steps; None if they say nothing."""
    times = [rows[step].get("seconds/total", math.nan) for step in sorted(rows)[-PACE:] if step]
    times = [each for each in times if math.isfinite(each)]
    if total is None or not times:
        return None
    return max(total - newest, 0) * max(statistics.fmean(times), 0.0)


def _health(rows: Mapping[int, Mapping[str, float]]) -> RunHealth:
    troubles = of_troubles(rows.values())
    valid: dict[str, float] = {}
    alarms: dict[str, int] = {}
    for step in sorted(rows):
        for name, value in rows[step].items():
            section, _, rest = name.partition("/")
            if section == "role" and rest.endswith("/valid") and rest.count("/") == 1:
                valid[rest] = value
            elif section == "collapse" and rest != "returned" and value:
                alarms[rest] = step
    shares = [1 - value for value in valid.values() if math.isfinite(value)]
    return RunHealth(
        timeouts=troubles.get("timeout", 0) + troubles.get("stalled", 0),
        failed=troubles.get("failed_episodes", 0) + troubles.get("failed_evaluation_episodes", 0),
        malformed=max(shares, default=None),
        alarms=alarms,
    )


def _chief(
    rows: Mapping[int, Mapping[str, float]], declared: RunMetrics
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the latest values of the main metrics, as texts and as numbers."""
    latest: dict[str, tuple[int, float]] = {}
    for step, row in rows.items():
        latest |= {key: (step, value) for key, value in row.items() if declared.order(key)}
    newest = max(rows, default=0)
    chosen = sorted(latest, key=declared.order)[:MOST_METRICS]
    texts = {
        key: as_of(format_value(declared.of(key), latest[key][1]), latest[key][0], newest)
        for key in chosen
    }
    return texts, {key: latest[key][1] for key in chosen}


def _matches(row: TableRow, keys: Sequence[str], words: str) -> bool:
    """Return True if a run has every word in its name, state, settings, tags or alarms."""
    settings = [f"{key}={row.config.get(key, '')}" for key in ("seed", *keys)]
    alarms = ["alarm", *row.health.alarms] if row.health.alarms else []
    tags = {f"tag:{tag.lower()}" for tag in row.tags}
    text = " ".join([row.name, row.state, *settings, *alarms]).lower()
    # A tag is named whole: a filter for "good" does not find "goodbye".
    return all(word in tags or word in text for word in words.lower().split())


def _order(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts numbers before texts."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 1, 0.0, str(value)
    return (0, number, "") if not math.isnan(number) else (1, 0.0, "")
