"""Readers of a run folder's records: episodes, metrics and summary."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from selfplay.errors import RunError
from selfplay.run.formatting import counted
from selfplay.run.run_folder import EPISODES, SUMMARY
from selfplay.run.untrusted import open_regular
from selfplay.types import LONE_SURROGATE, Episode, Turn, from_json

Advantage: TypeAlias = float | list[float] | None
"""Advantage of a turn: one number, one number per token, or None for a turn without credit."""

DIGITS = 12
"""Largest number of digits of a step."""
TOKENS = 2**32
"""Token ids are below this bound."""
LONGEST_REASON = 200
"""Largest number of characters of an error message that quotes a file."""

_ADVANTAGES: TypeAdapter[list[Advantage]] = TypeAdapter(list[Advantage])
_MEMBER: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0, lt=2**31)])


Evaluations = Mapping[str, Mapping[str, Mapping[str, float | None] | None]]
"""Evaluation name to "before" and "after" to metric name to value."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The contents of `summary.json`. The defaults stand for a run that has not ended."""

    name: str = ""
    """The run's name."""
    experiment: str = ""
    """The experiment's name."""
    steps: Annotated[int, Field(ge=0, lt=10**DIGITS)] = 0
    """Number of completed steps."""
    seconds: float = 0.0
    """Wall-clock time of the run, in seconds."""
    evaluations: Evaluations = field(default_factory=dict)
    """Metrics of the evaluations before and after training."""
    totals: Mapping[str, Any] = field(default_factory=dict)
    """Sums over the run."""
    troubles: Mapping[str, Any] = field(default_factory=dict)
    """Counts of failed episodes and of program runs out of time; see `metrics.of_troubles`."""
    command: str = ""
    """The command that reproduces the run."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """Versions of Python and of the libraries that the run used."""


_SUMMARY: TypeAdapter[Summary] = TypeAdapter(Summary)


@dataclass(kw_only=True)
class Recorded:
    """An episode of a run folder, with its position in the record and its advantages."""

    step: int
    """The step that played the episode."""
    line: int
    """Line of the episode in the step's file, from 1."""
    group: str
    """Id of the episode's group."""
    member: int
    """Index of the episode in its group."""
    advantages: list[Advantage]
    """[turns] advantages, None for turns without credit; empty if none is recorded."""
    episode: Episode


@dataclass
class DamagedLines:
    """Damaged lines that a reader left out. Without it, a reader raises at the first of them."""

    first: str = ""
    """File, line number and fault of the first one; empty if there is none."""
    count: int = 0
    """Number of these lines."""

    def add(self, fault: str) -> None:
        """Count a line with its fault."""
        self.first = self.first or fault
        self.count += 1

    def text(self, run: Path) -> str:
        """Return one line about the damaged lines; "" if there is none.

        The line names the file by its path in the run folder.
        """
        if not self.count:
            return ""
        first = self.first.removeprefix(f"{run}{os.sep}")
        if self.count == 1:
            return f"left out one damaged line: {first}"
        return f"left out {counted(self.count, 'damaged line')}, the first is {first}"


def nearest_steps(steps: Sequence[int], step: int) -> str:
    """Return the recorded steps nearest to a step, at most five, as a part of an error."""
    near = sorted(sorted(steps, key=lambda each: abs(each - step))[:5])
    return f"near it are those of {', '.join(map(str, near))}"


def recorded_steps(run: Path) -> list[int]:
    """Return the steps of a run whose episodes were recorded.

    Raises RunError if the folder of episodes cannot be read.
    """
    folder = run / EPISODES
    try:
        if not folder.is_dir():
            return []
        return sorted(
            int(path.stem)
            for path in folder.iterdir()  # glob() hides permission errors
            if path.stem.isdecimal()
            and len(path.stem) < DIGITS
            and path == file_of(run, int(path.stem))
            and path.stat().st_size > 1  # the file of a step without episodes is empty
        )
    except OSError as error:
        raise RunError(f"{folder}: cannot be read ({error.strerror})") from error


def episodes_of(run: Path, step: int, *, damaged: DamagedLines | None = None) -> Iterator[Recorded]:
    """Yield the episodes of a recorded step.

    A line that is not a recorded episode is added to `damaged` and left out; without `damaged`
    it raises RunError, with file and line.
    """
    path = file_of(run, step)
    seen: set[tuple[str, int]] = set()
    for line, data in records(path, root=run, damaged=damaged):
        try:
            record = record_of(data, step=step, line=line, path=path)
        except RunError as error:
            if damaged is None:
                raise
            damaged.add(str(error))
            continue
        seen.add((record.group, record.member))
        parent = record.episode.branch_of
        if damaged is None and parent is not None and (record.group, parent) not in seen:
            raise RunError(
                f"{path}, line {line}: not a recorded episode (its parent, member {parent} of group"
                f" {record.group[:40]!r}, does not come before it)"
            )
        yield record


def record_of(data: Any, *, step: int, line: int, path: Path) -> Recorded:
    """Convert a decoded line to an episode.

    Raises RunError, with file and line, if the line is not a recorded episode.
    """
    try:
        record = Recorded(
            step=step,
            line=line,
            group=str(data.get("group", "")),
            member=_MEMBER.validate_python(data.get("member", 0)),
            advantages=_ADVANTAGES.validate_python(data.get("advantages") or []),
            episode=from_json(Episode, data["episode"]),
        )
        demand_whole(record)
        return record
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{path}, line {line}: not a recorded episode ({_reason(error)})") from error


def demand_whole(record: Recorded) -> None:
    """Raise ValueError if a rollout cannot have produced this episode."""
    episode, advantages = record.episode, record.advantages
    if episode.branch_of is not None and not 0 <= episode.branch_of < record.member:
        raise ValueError(f"branch_of {episode.branch_of} is not an earlier member of its group")
    if not 0 <= episode.shared_turns <= len(episode.turns):
        raise ValueError(f"shared_turns {episode.shared_turns} of {len(episode.turns)} turns")
    if len(advantages) > len(episode.turns):
        raise ValueError(f"{len(advantages)} advantages of {len(episode.turns)} turns")
    for place, turn in enumerate(episode.turns):
        tokens = len(turn.completion_ids)
        given = advantages[place] if place < len(advantages) else None
        lists: dict[str, Sequence[Any]] = {
            "logprobs": turn.logprobs,
            "loss_mask": turn.loss_mask,
            "advantages": given if isinstance(given, list) else (),
        }
        for name, values in lists.items():
            if values and len(values) != tokens:
                raise ValueError(f"turn {place}: {len(values)} {name} of {tokens} tokens")
        if not all(0 <= token < TOKENS for token in (*turn.prompt_ids, *turn.completion_ids)):
            raise ValueError(f"turn {place}: a token id outside 0 to {TOKENS - 1}")
        if not (turn.final or _goes_on(episode.turns, place)):
            raise ValueError(f"turn {place}: tool calls without a move after them")
        for message in turn.messages:
            parts = message.get("content", "")
            if not isinstance(parts, str) and not (
                isinstance(parts, list) and all(isinstance(part, dict) for part in parts)
            ):
                raise ValueError(f"turn {place}: a message's content is neither text nor parts")


def _goes_on(turns: Sequence[Turn], place: int) -> bool:
    """Return True if the same agent has the next turn, in the same stage."""
    turn, following = turns[place], turns[place + 1 : place + 2]
    return any((each.agent, each.stage) == (turn.agent, turn.stage) for each in following)


def _reason(error: Exception) -> str:
    """Return the fault of a recorded value in one short line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}"[:LONGEST_REASON]
    return (str(error).splitlines() or [type(error).__name__])[0][:LONGEST_REASON]


def file_of(run: Path, step: int) -> Path:
    """Return the path of the file with the episodes of a step."""
    return run / EPISODES / f"{step:06d}.jsonl"


def read_metrics(path: Path, *, damaged: DamagedLines | None = None) -> dict[int, dict[str, float]]:
    """Read metrics.jsonl; return step to metrics. For a repeated step, the last line counts.

    Values that are not numbers are left out. A number that is too large for a float becomes
    infinite. A missing file means that the run has not finished a step. An invalid line is added
    to `damaged` and left out; without `damaged` it raises RunError, with file and line.
    """
    rows: dict[int, dict[str, float]] = {}
    if not os.path.lexists(path):
        return rows
    for line, record in records(path, root=path.parent, damaged=damaged):
        step = record.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or abs(step) >= 10**DIGITS:
            fault = f"{path}, line {line}: 'step' is missing or not a whole number"
            if damaged is None:
                raise RunError(fault)
            damaged.add(fault)
            continue
        rows[step] = {
            key: as_float(value)
            for key, value in record.items()
            if isinstance(value, int | float) and key != "step"
        }
    return dict(sorted(rows.items()))


def as_float(value: float) -> float:
    """Return a number as a float; a number that is too large becomes infinite."""
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if value > 0 else -math.inf


def read_summary(path: Path) -> Summary | None:
    """Read summary.json; return None if it does not exist yet.

    Raises RunError if it cannot be read.
    """
    if not os.path.lexists(path):
        return None
    try:
        with open_regular(path, root=path.parent) as file:
            return _SUMMARY.validate_python(decode(file.read()))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise RunError(f"{path}: {_reason(error)}") from error
    except (ValueError, OverflowError) as error:
        raise RunError(f"{path}: not valid JSON ({_reason(error)})") from error


def summary_or_damage(run: Path) -> tuple[Summary | None, str]:
    """Return the summary of a run, and one line about its file if that cannot be read, else ""."""
    try:
        return read_summary(run / SUMMARY), ""
    except RunError as error:
        return None, str(error).removeprefix(f"{run}{os.sep}")


def decode(data: bytes) -> Any:
    """Decode a JSON value; raise ValueError if `data` is not valid JSON.

    A lone surrogate, which JSON can escape but UTF-8 cannot encode, becomes its code in brackets.
    """
    try:
        value = json.loads(data.decode())
        if b"\\ud" not in data and b"\\uD" not in data:
            return value
        text = json.dumps(value, ensure_ascii=False)
        text = LONE_SURROGATE.sub(lambda lone: f"\u27e8U+{ord(lone[0]):04X}\u27e9", text)
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def records(
    path: Path, *, root: Path, damaged: DamagedLines | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a file of JSON lines.

    An incomplete last line is left out: the run is in progress, or was killed. Only a regular
    file inside `root` is read. An invalid line is added to `damaged` and left out; without
    `damaged` it raises RunError, with file and line.
    """
    try:
        with open_regular(path, root=root) as lines:
            for count, line in enumerate(lines, 1):
                data, fault = None, "expected a JSON object"
                try:
                    data = decode(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    fault = f"not valid JSON ({_reason(error)})"
                if isinstance(data, dict):
                    yield count, data
                elif damaged is None:
                    raise RunError(
                        f"{path}, line {count}: {fault}; delete this line to read the others"
                    )
                else:
                    damaged.add(f"{path}, line {count}: {fault}")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
