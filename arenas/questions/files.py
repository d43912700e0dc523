"""Questions from a file of JSON lines with `question` and, if known, `answer`."""

import json
from pathlib import Path

from arenas.questions.arena import question_task
from selfplay.errors import ConfigError
from selfplay.types import Task, well_formed


def read(*, path: str, labelled: bool = True, kind: str = "question") -> list[Task]:
    """Return the tasks of a file without duplicates. Raises ConfigError for an invalid file.

    Args:
        path: Path of the file; blank lines and other keys are ignored.
        labelled: If false, answers are omitted, so that training cannot use them.
        kind: Type of the tasks.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"questions: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"questions: {path} is not UTF-8 text") from error
    found: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            task = _task(line, labelled, kind, where=f"questions: {path}, line {number}")
            found.setdefault(task.id, task)
    if not found:
        raise ConfigError(f"questions: {path} contains no questions")
    return list(found.values())


def _task(line: str, labelled: bool, kind: str, *, where: str) -> Task:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON") from error
    question = data.get("question") if isinstance(data, dict) else None
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"{where}: needs an object with a text under 'question'")
    answer = data.get("answer")
    if not isinstance(answer, str | int | float | None) or isinstance(answer, bool):
        raise ConfigError(f"{where}: 'answer' must be a text or a number")
    known = None if answer is None or not labelled else well_formed(str(answer))
    return question_task(kind, well_formed(question.strip()), known)
