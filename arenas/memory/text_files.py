"""Long texts with questions from a file of JSON lines with `question`, `text` and `answer`."""

import json
from hashlib import blake2b

from arenas.questions.files import answer_in, text_in
from selfplay.config.json_lines import json_lines
from selfplay.errors import ConfigError
from selfplay.types import Task


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
    tasks = []
    for _, where, data in json_lines(path, of="texts"):
        question, text = text_in(data, "question", where), text_in(data, "text", where)
        answer = answer_in(data, where)
        if answer is None:
            raise ConfigError(f"{where}: 'answer' must be a text or a number")
        payload = {
            "question": question,
            "parts": parts_of(text, characters),
            "answer": answer,
        }
        name = blake2b(json.dumps(payload).encode(), digest_size=8).hexdigest()
        tasks.append(Task(id=name, type=kind, payload=payload))
    return tasks


def parts_of(text: str, characters: int) -> list[str]:
    """Return a text in parts of at most `characters`, cut at white space where possible."""
    parts, left = [], text.strip()
    while len(left) > characters:
        cut = max(left.rfind(" ", 0, characters + 1), left.rfind("\n", 0, characters + 1))
        cut = cut if cut > 0 else characters
        parts.append(left[:cut].rstrip())
        left = left[cut:].lstrip()
    return [*parts, left]
