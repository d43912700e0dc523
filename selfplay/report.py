"""The report: one self-contained HTML page about a run, built from the files of its folder.

The page refers to nothing outside itself and holds no script. What a model wrote is hostile markup:
it is escaped, characters that hide or reorder text are made visible, and the page's own
Content-Security-Policy would stop whatever got past that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from selfplay.charts import arrange, draw
from selfplay.collapse.record import alarms
from selfplay.curves import smoothing
from selfplay.errors import RunError
from selfplay.figures import change, figure, is_fault, is_share, words
from selfplay.pages import render, write_page
from selfplay.recorded import Evaluations, Summary, read_metrics, read_summary
from selfplay.transcripts import choose


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One line of the evaluation table."""

    metric: str
    """Its name."""
    before: str
    """The figure before training."""
    after: str
    """The figure after training, or the latest."""
    change: str
    """The signed difference."""
    direction: str
    """"up" (for the better), "down" or "same"."""
    share: bool
    """Whether the change is in percentage points."""
    chief: bool
    """Whether it is about the whole evaluation and not a part of it."""


def write_report(run: Path) -> Path:
    """Write `report.html` into the run folder and return its path.

    Raises RunError, in one line, if `run` is not a run folder or one of its files cannot be read.
    """
    config_file = run / "config.yaml"
    if not config_file.is_file():
        raise RunError(f"{run}: not a run folder (no config.yaml); name one that training made")
    config = _read(config_file)
    rows = read_metrics(run / "metrics.jsonl")
    summary = read_summary(run / "summary.json")
    evaluations = summary.evaluations if summary and summary.evaluations else _evaluations(rows)
    choices = choose(run)
    curves = _with_ends(rows, summary) if summary else rows
    page = render(
        "report.html.jinja",
        summary=summary or Summary(),
        finished=summary is not None,
        name=(summary.name if summary else "") or run.resolve().name,
        steps=max([*rows, summary.steps if summary else 0], default=0),
        seconds=(summary.seconds if summary else 0.0)
        or sum(row.get("seconds/total", 0.0) for row in rows.values()),
        alarms=alarms(run, rows),
        evaluations={name: compare(figures) for name, figures in evaluations.items()},
        sections=[
            (section.title, [(chart, Markup(draw(chart))) for chart in section.charts])
            for section in arrange(curves)
        ],
        window=smoothing(len(rows)),
        choices=choices,
        config=config,
    )
    return write_page(run / "report.html", page)


def compare(figures: Mapping[str, Mapping[str, float | None] | None]) -> list[Compared]:
    """The lines of one evaluation's table: the whole first, then its parts."""
    before, after = figures.get("before") or {}, figures.get("after") or {}
    # In the order in which the evaluation asks for them; what all of them count, and parts, behind.
    names = sorted(dict.fromkeys([*before, *after]), key=lambda name: ("/" in name, _counted(name)))
    lines = []
    for name in names:
        first, last = before.get(name), after.get(name)
        difference = change(name, first, last)
        # Which way is good is known of shares alone; a change that rounds to nothing is none.
        judged = is_share(name) and any(digit in "123456789" for digit in difference)
        better = (difference[0] != "-") != is_fault(name)
        lines.append(
            Compared(
                metric=words(name),
                before=figure(name, first),
                after=figure(name, last),
                change=difference,
                direction=("up" if better else "down") if judged else "same",
                share=is_share(name),
                chief="/" not in name,
            )
        )
    return lines


def _counted(name: str) -> bool:
    """Whether an evaluation counts it unasked."""
    return name == "failed_episodes" or name.startswith("distinct_")


def _evaluations(rows: Mapping[int, Mapping[str, float]]) -> Evaluations:
    """The first and the latest figures of each evaluation on record, while there is no summary."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in rows.values():
        at_step: dict[str, dict[str, float | None]] = {}
        for key, value in row.items():
            prefix, _, rest = key.partition("/")
            name, slash, metric = rest.partition("/")
            if prefix == "evaluation" and slash:
                at_step.setdefault(name, {})[metric] = value
        for name, figures in at_step.items():
            when = "after" if name in found else "before"
            found.setdefault(name, {})[when] = figures
    return found


def _with_ends(
    rows: Mapping[int, Mapping[str, float]], summary: Summary
) -> dict[int, Mapping[str, float]]:
    """`rows` with the evaluations before and after training, at step 0 and at the last step."""
    ends = {"before": 0, "after": max([*rows, summary.steps])}
    extended = dict(rows)
    for name, figures in summary.evaluations.items():
        for when, step in ends.items():
            known = {k: v for k, v in (figures.get(when) or {}).items() if v is not None}
            found = {f"evaluation/{name}/{metric}": value for metric, value in known.items()}
            extended[step] = {**found, **extended.get(step, {})}
    return extended


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: is not UTF-8 text (byte {error.start})") from error
