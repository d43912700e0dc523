"""Questions from a file: JSON lines with `question` and, where it is known, `answer`."""

import json
from pathlib import Path

from arenas.questions.arena import question_task
from selfplay.errors import ConfigError
from selfplay.types import Task, well_formed


def read(*, path: str, labelled: bool = True, kind: str = "question") -> list[Task]:
    """The tasks of a file, each question once. Raises ConfigError, in one line, for what is none.

    Args:
        path: The file; blank lines are passed over, and so are keys other than the two.
        labelled: False leaves all answers out, so that nothing of them reaches training.
        kind: The tasks' type.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"questions: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"questions: {path} is no UTF-8 text") from error
    found: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            task = _task(line, labelled, kind, where=f"questions: {path}, line {number}")
            found.setdefault(task.id, task)
    if not found:
        raise ConfigError(f"questions: {path} has none")
    return list(found.values())


def _task(line: str, labelled: bool, kind: str, *, where: str) -> Task:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON") from error
    question = data.get("question") if isinstance(data, dict) else None
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"{where}: it is no object with a text under 'question'")
    answer = data.get("answer")
    if not isinstance(answer, str | int | float | None) or isinstance(answer, bool):
        raise ConfigError(f"{where}: 'answer' is neither a text nor a number")
    known = None if answer is None or not labelled else well_formed(str(answer))
    return question_task(kind, well_formed(question.strip()), known)
