"""Dialogues for the memory arena, and games with them."""

from typing import Any

from arenas.memory.arena import MANAGER, Memory, raw_env
from selfplay.types import Task

ADD = '{"event": "ADD"}'


NOOP = '{"memory": [{"event": "NONE"}]}'


def said(*texts: str, speaker: str = "Ann") -> list[dict[str, str]]:
    return [{"text": text, "speaker": speaker, "time": f"day {n}"} for n, text in enumerate(texts)]


def asked(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"question": question, "answer": answer} for question, answer in pairs]


def begun(facts: list[dict[str, str]], questions: list[dict[str, Any]], **settings: Any) -> Memory:
    arena = raw_env(**settings)
    arena.begin(Task(id="t", payload={"facts": facts, "questions": questions}), seed=0)
    return arena


def manage(arena: Memory, *actions: str | None) -> list[str]:
    verdicts = []
    for action in actions:
        arena.play_stage({MANAGER: action})
        verdicts.append(str(arena.notes[MANAGER]["verdict"]))
    return verdicts
