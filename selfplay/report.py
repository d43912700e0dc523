"""The report: one self-contained HTML page about a run, built from the files of its folder.

The page refers to nothing outside itself and holds no script. What a model wrote is hostile markup:
it is escaped, characters that hide or reorder text are made visible, and the page's own
Content-Security-Policy would stop whatever got past that.
"""

import base64
import hashlib
import json
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pydantic import TypeAdapter, ValidationError

from selfplay.charts import arrange, draw, smoothing
from selfplay.errors import RunError
from selfplay.figures import change, duration, figure, is_share, number, words
from selfplay.transcripts import choose, decode, records

Evaluations = Mapping[str, Mapping[str, Mapping[str, float | None] | None]]
"""Evaluation to "before" and "after" to metric to value."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What `summary.json` says; the defaults stand for a run that is still going."""

    name: str = ""
    """The run's name."""
    experiment: str = ""
    """The experiment it runs."""
    steps: int = 0
    """Steps done."""
    seconds: float = 0.0
    """Time spent."""
    evaluations: Evaluations = field(default_factory=dict)
    """Figures before and after training."""
    totals: Mapping[str, Any] = field(default_factory=dict)
    """Sums over the run."""
    command: str = ""
    """What to type to run it again."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """Versions of what it ran on."""


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
    """"up", "down" or "same"."""
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


def write_page(target: Path, page: str) -> Path:
    """Write a page so that it is either whole or as it was; RunError if that cannot be."""
    draft = target.with_name(f"{target.name}.part")
    try:
        # A lone surrogate, which JSON can smuggle in, must not cost the whole page.
        draft.write_text(page, encoding="utf-8", errors="replace", newline="\n")
        os.replace(draft, target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror})") from error
    return target


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """Step to metrics. A step that was done again after a resume counts as done the last time.

    Values that are not numbers are left out: they are not curves. A missing file is a run that has
    not done a step. Raises RunError naming file and line.
    """
    rows: dict[int, dict[str, float]] = {}
    if not path.exists():
        return rows
    for line, record in records(path):
        step = record.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise RunError(f"{path}, line {line}: 'step' is missing or not a whole number")
        rows[step] = {
            key: float(value)
            for key, value in record.items()
            if isinstance(value, int | float) and key != "step"
        }
    return dict(sorted(rows.items()))


def compare(figures: Mapping[str, Mapping[str, float | None] | None]) -> list[Compared]:
    """The lines of one evaluation's table: the whole first, then its parts."""
    before, after = figures.get("before") or {}, figures.get("after") or {}
    names = sorted(
        {*before, *after},
        # What an evaluation asks for comes first, the distinctness that all of them count behind.
        key=lambda name: ("/" in name, not is_share(name), name.startswith("distinct_"), name),
    )
    lines = []
    for name in names:
        first, last = before.get(name), after.get(name)
        difference = change(name, first, last)
        # Which way is good is known of shares alone; a change that rounds to nothing is none.
        judged = is_share(name) and any(digit in "123456789" for digit in difference)
        lines.append(
            Compared(
                metric=words(name),
                before=figure(name, first),
                after=figure(name, last),
                change=difference,
                direction=("down" if difference[0] == "-" else "up") if judged else "same",
                share=is_share(name),
                chief="/" not in name,
            )
        )
    return lines


def visible(value: Any) -> Any:
    """Text with every character shown that would hide or reorder others; else the value itself."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if value.isascii() and value.isprintable():
        return value
    return "".join(_shown(character) for character in value)


def _shown(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    # Cf holds the bidirectional overrides; the two joiners in it are needed to write words.
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"\u27e8U+{code:04X}\u27e9" if hidden and code not in (0x200C, 0x200D) else character


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


def read_summary(path: Path) -> Summary | None:
    """What summary.json says; None where there is none yet. RunError if it cannot be read."""
    if not path.exists():
        return None
    try:
        return TypeAdapter(Summary).validate_python(decode(path.read_bytes()))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RunError(f"{path}: {where}: {first['msg']}") from error
    except ValueError as error:
        raise RunError(f"{path}: not valid JSON ({error})") from error


def render(name: str, /, **fields: Any) -> str:
    """One of our templates, filled in, as a whole page."""
    templates = resources.files("selfplay") / "templates"
    style = (templates / "report.css").read_text(encoding="utf-8").replace("\r\n", "\n")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    environment.filters.update(duration=duration, number=number, words=words, fact=_fact)
    template = environment.from_string((templates / name).read_text(encoding="utf-8"))
    return template.render(style=Markup(style), style_hash=Markup(digest), **fields)


def _fact(value: Any) -> str:
    """A value of the totals or the versions, as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
