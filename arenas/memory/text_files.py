"""Long texts with questions from a file of JSON lines with `question`, `text` and `answer`."""

import json
from hashlib import blake2b
from pathlib import Path

from selfplay.errors import ConfigError
from selfplay.types import Task, well_formed


def read(*, path: str, characters: int = 20_000, kind: str = "text") -> list[Task]:
    """Return a task for each line of a file. Raises ConfigError for an invalid file.

    Args:
        path: Path of the file; blank lines and other keys are ignored.
        characters: Maximum characters of a part; 20,000 are about 5,000 tokens of English text, as
            in MemAgent (2507.02259).
        kind: Type of the tasks.
    """
    if characters < 1:
        raise ConfigError(f"texts: characters is at least 1, not {characters}")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"texts: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"texts: {path} is not UTF-8 text") from error
    tasks = [
        _task(line, characters, kind, where=f"texts: {path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not tasks:
        raise ConfigError(f"texts: {path} contains no texts")
    return tasks


def _task(line: str, characters: int, kind: str, *, where: str) -> Task:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON") from error
    given = data if isinstance(data, dict) else {}
    for key in ("question", "text"):
        if not isinstance(given.get(key), str) or not given[key].strip():
            raise ConfigError(f"{where}: needs an object with a text under {key!r}")
    answer = given.get("answer")
    if not isinstance(answer, str | int | float) or isinstance(answer, bool):
        raise ConfigError(f"{where}: 'answer' must be a text or a number")
    payload = {
        "question": well_formed(given["question"].strip()),
        "parts": parts_of(well_formed(given["text"]), characters),
        "answer": well_formed(str(answer)),
    }
    name = blake2b(json.dumps(payload).encode(), digest_size=8).hexdigest()
    return Task(id=name, type=kind, payload=payload)


def parts_of(text: str, characters: int) -> list[str]:
    """Return a text in parts of at most `characters`, cut at white space where there is some."""
    parts, left = [], text.strip()
    while len(left) > characters:
        cut = max(left.rfind(" ", 0, characters + 1), left.rfind("\n", 0, characters + 1))
        cut = cut if cut > 0 else characters
        parts.append(left[:cut].rstrip())
        left = left[cut:].lstrip()
    return [*parts, left]
