"""LoCoMo's file format (2402.17753) as tasks of the memory arena.

A file is a list of conversations. Each has `conversation` with `session_<n>`, lists of turns with
`speaker`, `dia_id` and `text`, and `session_<n>_date_time`; `observation` with facts extracted from
the sessions; and `qa`, questions with `answer`, `evidence` (ids of turns) and `category` (5:
adversarial questions, which have no answer). The keys that this module reads are checked strictly;
other keys of the file are ignored.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from selfplay.config.regular_files import open_regular_file
from selfplay.errors import ConfigError, RunError, check_choice
from selfplay.rng import derive
from selfplay.types import Task, well_formed

Source = Literal["turns", "observations"]
Per = Literal["conversation", "turn"]


class FormatError(ValueError):
    """Wrong file format; the argument names the position in the file."""


def tasks(
    *,
    path: str,
    conversations: Sequence[int] | None = None,
    categories: Sequence[int] = (1, 2, 3, 4),
    facts: Source = "turns",
    per: Per = "conversation",
    window: int = 50,
) -> list[Task]:
    """Return the tasks of a LoCoMo file. Raises ConfigError, in one line, for another format.

    Args:
        path: Path of the file.
        conversations: Numbers of the conversations to use, from 0; None: all. The paper of
            Memory-R1 trains on one, validates on one and tests on the other eight.
        categories: Categories of the questions to use; the default omits adversarial ones.
        facts: Source of the facts: turns of the dialogue, or the file's observations.
        per: conversation: one task, with all its questions. turn: a task for every fact that is
            the last evidence of a question, with these questions; the earlier facts are already in
            the bank, word for word (in Memory-R1, GPT-4o-mini fills that bank).
        window: Number of earlier facts in the bank, for per=turn.
    """
    for name, value, known in (("facts", facts, Source), ("per", per, Per)):
        check_choice(f"locomo: {name}", value, get_args(known))
    if window < 0:
        raise ConfigError(f"locomo: window is 0 or more, not {window}")
    samples = _load(path)
    chosen = range(len(samples)) if conversations is None else conversations
    found: list[Task] = []
    for number in chosen:
        if not 0 <= number < len(samples):
            raise ConfigError(f"locomo: {path} has conversations 0 to {len(samples) - 1}: {number}")
        try:
            said, questions = _read(samples[number], facts, set(categories))
        except FormatError as error:
            raise ConfigError(f"locomo: {path}: conversation {number}: {error}") from None
        content = derive(json.dumps([said, questions]))
        name = f"locomo-{number}-{content:x}"
        if per == "conversation":
            found.append(_task(name, [], said, questions))
        else:
            found += _by_turn(name, said, questions, window)
    if not found:
        raise ConfigError(f"locomo: {path}: no question names one of the {facts} as its evidence")
    return found


def _load(path: str) -> list[Any]:
    try:
        with open_regular_file(Path(path)) as file:
            data = json.loads(file.read().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"locomo: cannot read {path}: {error.strerror}") from error
    except RunError as error:  # a pipe or a device
        raise ConfigError(f"locomo: {error}") from error
    except (ValueError, RecursionError) as error:
        line = " ".join(str(error).split())[:100]
        raise ConfigError(f"locomo: {path} is not valid JSON: {line}") from None
    if not isinstance(data, list) or not data:
        raise ConfigError(f"locomo: {path}: needs a list of conversations")
    return data


def _read(
    sample: Any, facts: Source, categories: set[int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (facts, questions) of one conversation; evidence consists of numbers of facts."""
    conversation = _get(sample, "conversation", dict, "")
    turns = list(_turns(conversation))
    times = {turn["dia_id"]: turn["time"] for turn in turns}
    if len(times) < len(turns):
        raise FormatError("conversation: duplicate dia_id")
    said = turns if facts == "turns" else list(_observations(sample, times))
    if not said:
        raise FormatError(f"no {facts}")
    questions = list(_questions(_get(sample, "qa", list, ""), said, categories))
    if not questions:
        raise FormatError(f"qa: no question of the categories {sorted(categories)}")
    return [{key: fact[key] for key in ("text", "speaker", "time")} for fact in said], questions


def _turns(conversation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    found = (re.fullmatch(r"session_(\d+)", key) for key in conversation)
    for number in sorted(int(match[1]) for match in found if match):
        key = f"session_{number}"
        time = _get(conversation, f"{key}_date_time", str, "conversation.")
        session = _get(conversation, key, list, "conversation.")
        for place, turn in enumerate(session):
            where = f"conversation.{key}[{place}]."
            fields = {name: _get(turn, name, str, where) for name in ("speaker", "dia_id", "text")}
            if caption := turn.get("blip_caption"):
                fields["text"] += f" [shows a picture: {caption}]"
            yield {**fields, "text": well_formed(fields["text"]), "time": time}


def _observations(sample: Mapping[str, Any], times: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    by_session = _get(sample, "observation", dict, "")
    found = (re.fullmatch(r"session_(\d+)_observation", key) for key in by_session)
    for number in sorted(int(match[1]) for match in found if match):
        key = f"session_{number}_observation"
        where = f"observation.{key}."
        for speaker, drawn in _get(by_session, key, dict, "observation.").items():
            for place, pair in enumerate(drawn if isinstance(drawn, list) else [drawn]):
                if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
                    raise FormatError(f"{where}{speaker}[{place}]: needs [text, dia_id]")
                origin = pair[1][0] if isinstance(pair[1], list) and pair[1] else pair[1]
                yield {
                    "text": well_formed(pair[0]),
                    "speaker": speaker,
                    "dia_id": str(origin),
                    "time": times.get(str(origin), ""),
                }


def _questions(
    listed: Sequence[Any], said: Sequence[Mapping[str, Any]], categories: set[int]
) -> Iterator[dict[str, Any]]:
    numbers: dict[str, list[int]] = {}
    for number, fact in enumerate(said):
        numbers.setdefault(fact["dia_id"], []).append(number)
    for place, item in enumerate(listed):
        where = f"qa[{place}]."
        category = _get(item, "category", int, where)
        if category not in categories:
            continue
        question = _get(item, "question", str, where)
        answer = _get(item, "answer", (str, int, float), where)
        # The published file writes some of its evidence as "D8:6; D9:17".
        named = re.findall(r"D\d+:\d+", " ".join(map(str, _get(item, "evidence", list, where))))
        evidence = sorted({number for name in named for number in numbers.get(name, ())})
        yield {"question": question, "answer": str(answer), "evidence": evidence}


def _get(data: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return `data[key]`; raises FormatError if it is missing or of another type."""
    if not isinstance(data, Mapping):
        raise FormatError(f"{where.rstrip('.') or 'the conversation'}: needs keys and values")
    if key not in data:
        raise FormatError(f"{where}{key}: missing")
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(each.__name__ for each in kinds)
        raise FormatError(f"{where}{key}: needs {names}, not {type(value).__name__}")
    return value


def _by_turn(
    name: str, said: list[dict[str, Any]], questions: list[dict[str, Any]], window: int
) -> Iterator[Task]:
    for number, fact in enumerate(said):
        linked = [each for each in questions if max(each["evidence"], default=-1) == number]
        if linked:
            begin = max(0, number - window)
            yield _task(f"{name}-{number}", said[begin:number], [fact], _moved(linked, begin))


def _moved(questions: Sequence[dict[str, Any]], begin: int) -> list[dict[str, Any]]:
    """Renumber the evidence from the start of the window; [] if some evidence is older."""
    return [
        {**question, "evidence": [number - begin for number in question["evidence"]]}
        if min(question["evidence"]) >= begin
        else {**question, "evidence": []}
        for question in questions
    ]


def _task(
    name: str,
    earlier: list[dict[str, Any]],
    facts: list[dict[str, Any]],
    questions: list[dict[str, Any]],
) -> Task:
    payload = {"earlier": earlier, "facts": facts, "questions": questions}
    return Task(id=name, type="locomo", payload=payload)
