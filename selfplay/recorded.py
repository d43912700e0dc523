"""What a run has recorded: episodes, metrics and summary, read back from the run folder."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from selfplay.errors import RunError
from selfplay.types import Episode, from_json

Advantage: TypeAlias = float | list[float] | None
"""One number per turn, one per token of it, or none: the turn was not credited."""

_ADVANTAGES: TypeAdapter[list[Advantage]] = TypeAdapter(list[Advantage])
_SURROGATE = re.compile("[\\ud800-\\udfff]")


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


@dataclass(kw_only=True)
class Recorded:
    """An episode as a step recorded it."""

    step: int
    """The step that played it."""
    line: int
    """Its line in the step's file, from 1."""
    group: str
    """The group it belongs to."""
    member: int
    """Its place in the group."""
    advantages: list[Advantage]
    """One per turn, where it was credited."""
    episode: Episode
    """The episode."""


def recorded_steps(run: Path) -> list[int]:
    """The steps of a run whose episodes were recorded; raises RunError if they cannot be read."""
    folder = run / "episodes"
    try:
        if not folder.is_dir():
            return []
        return sorted(
            int(path.stem)
            for path in folder.iterdir()  # a glob would find nothing where it may not look
            if path.stem.isdecimal()
            and path == file_of(run, int(path.stem))
            and path.stat().st_size > 1  # a step may keep no episodes
        )
    except OSError as error:
        raise RunError(f"{folder}: cannot be read ({error.strerror})") from error


def episodes_of(run: Path, step: int) -> Iterator[Recorded]:
    """The episodes of a recorded step; raises RunError naming file and line of what is none."""
    path = file_of(run, step)
    for line, data in records(path):
        yield record_of(data, step=step, line=line, path=path)


def record_of(data: Any, *, step: int, line: int, path: Path) -> Recorded:
    """A decoded line as an episode; RunError, naming file and line, if it is none."""
    try:
        return Recorded(
            step=step,
            line=line,
            group=str(data.get("group", "")),
            member=int(data.get("member", 0)),
            advantages=_ADVANTAGES.validate_python(data.get("advantages") or []),
            episode=from_json(Episode, data["episode"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{path}, line {line}: not a recorded episode ({reason})") from error


def file_of(run: Path, step: int) -> Path:
    """Where the episodes of a step stand."""
    return run / "episodes" / f"{step:06d}.jsonl"


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


def decode(data: bytes) -> Any:
    """The JSON value in `data`; raises ValueError where there is none.

    A lone surrogate, which JSON can escape but no text can hold, becomes its code in brackets.
    """
    try:
        value = json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if b"\\ud" not in data and b"\\uD" not in data:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(_SURROGATE.sub(lambda lone: f"\u27e8U+{ord(lone[0]):04X}\u27e9", text))


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a file of JSON lines; raises RunError naming file and line.

    A last line that was cut short is left out: the run is being written, or was killed.
    """
    try:
        with path.open("rb") as lines:
            for count, line in enumerate(lines, 1):
                try:
                    data = decode(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise RunError(f"{path}, line {count}: not valid JSON ({error})") from error
                if not isinstance(data, dict):
                    raise RunError(f"{path}, line {count}: expected a JSON object")
                yield count, data
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
