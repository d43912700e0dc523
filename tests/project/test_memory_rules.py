"""Tests of `scripts/memory_rules.py`: fixed rules for the manager, and for the answer."""

from typing import Any

from arenas.memory.arena import raw_env
from arenas.memory.dialogues import TinyReader
from arenas.memory.small_talk import SmallTalkReader, small_talk
from selfplay.types import Task
from tests.helpers.scripts import script

rules = script("memory_rules")


def dialogue(*texts: str, question: str, answer: str) -> Task:
    facts = [{"text": text, "speaker": "Ann", "time": "day 1"} for text in texts]
    questions: list[dict[str, Any]] = [{"question": question, "answer": answer, "evidence": []}]
    return Task(id="0", type="dialogue", payload={"facts": facts, "questions": questions})


MOVED = dialogue(
    "Ann's city is Rome.",
    "It rains.",
    "Ann's city is now Oslo.",
    question="What is Ann's city?",
    answer="Oslo",
)
DENIED = dialogue(
    "Ann's city is Rome.",
    "Ann's city is not Rome.",
    question="What is Ann's city?",
    answer="unknown",
)


def scores(task: Task) -> dict[str, float]:
    arena = raw_env(capacity=2, reader=TinyReader())
    return {name: rules.exact_match(arena, task, rule) for name, rule in rules.RULES.items()}


def test_scores_of_each_rule() -> None:
    # `add` fills the bank with Rome and the rain; `update first` replaces Rome by the rain, and
    # the rain by Oslo.
    assert scores(MOVED) == {
        "add": 0.0,
        "update first": 1.0,
        "update first, no chatter": 1.0,
        "perfect": 1.0,
    }
    hidden = dialogue(
        "Ann's city is Rome.", "It rains.", question="What is Ann's city?", answer="Rome"
    )
    assert scores(hidden)["update first"] == 0.0
    assert scores(hidden)["update first, no chatter"] == 1.0
    assert scores(DENIED)["perfect"] == 1.0
    assert scores(DENIED)["add"] == 0.0


def test_the_perfect_rule_answers_all_small_talk() -> None:
    arena = raw_env(capacity=2, reader=SmallTalkReader())
    tasks = small_talk(count=20, split="held_out", seed=3)
    assert [rules.exact_match(arena, task, rules.perfect) for task in tasks] == [1.0] * 20
    assert rules.value_score(tasks, -1) == 1.0


def test_the_first_and_the_last_value_are_those_of_the_question() -> None:
    assert rules.value_score([MOVED], 0) == 0.0
    assert rules.value_score([MOVED], -1) == 1.0
    assert rules.value_score([DENIED], -1) == 0.0
