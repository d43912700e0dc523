"""Questions from a file of JSON lines with `question` and, if known, `answer`."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arenas.questions.arena import question_task
from selfplay.config.regular_files import open_regular_file
from selfplay.errors import ConfigError, RunError
from selfplay.types import Task, well_formed


def read(*, path: str, labelled: bool = True, kind: str = "question") -> list[Task]:
    """Return the tasks of a file without duplicates. Raises ConfigError for an invalid file.

    Args:
        path: Path of the file; blank lines and other keys are ignored.
        labelled: If false, answers are omitted, so that training cannot use them.
        kind: Type of the tasks.
    """
    found: dict[str, Task] = {}
    answers: dict[str, str] = {}
    for where, data in objects(path, of="questions"):
        question, answer = text_in(data, "question", where), answer_in(data, where)
        if answer is not None and answers.setdefault(question, answer) != answer:
            raise ConfigError(f"{where}: the question of an earlier line, with another answer")
        task = question_task(kind, question, answer if labelled else None)
        found.setdefault(task.id, task)
    return list(found.values())


def objects(path: str, *, of: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each line of JSON; raises ConfigError.

    Args:
        path: Path of the file; blank lines are left out.
        of: Contents of the file, for errors.
    """
    try:
        # `splitlines` would also cut at characters that JSON allows inside a text, such as U+2028.
        with open_regular_file(Path(path)) as file:
            data = file.read()
        lines = data.decode("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"{of}: cannot read {path}: {error.strerror}") from error
    except RunError as error:  # a pipe or a device
        raise ConfigError(f"{of}: {error}") from error
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{of}: {path}, line {number}: not UTF-8 text") from error
    if not any(line.strip() for line in lines):
        raise ConfigError(f"{of}: {path} contains no {of}")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{of}: {path}, line {number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{where}: not JSON; one JSON object per line is needed"
                ) from error


def text_in(data: Any, key: str, where: str) -> str:
    """Return the text of a key without white space around it; raises ConfigError without one."""
    text = data.get(key) if isinstance(data, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: each line needs a JSON object with a text under {key!r}")
    return well_formed(text.strip())


def answer_in(data: Mapping[str, Any], where: str) -> str | None:
    """Return the `answer` of an object; None without one. Raises ConfigError for another type."""
    answer = data.get("answer")
    if not isinstance(answer, str | int | float | None) or isinstance(answer, bool):
        raise ConfigError(f"{where}: 'answer' must be a text or a number")
    if isinstance(answer, float) and not math.isfinite(answer):
        raise ConfigError(f"{where}: 'answer' is {answer}; it must be a text or a finite number")
    return None if answer is None else well_formed(str(answer))
