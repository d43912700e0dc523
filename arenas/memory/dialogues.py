"""Small dialogues with known facts, for the memory arena: what is asked has one right answer.

Two people say things about themselves over several sessions. Some of it is new, some replaces what
was said before (an update), some denies it (a contradiction), some repeats it, and some is of no
use. Every kind has an operation that serves the bank best, which `best_operation` names.

Every person and attribute has values of its own for training and others for evaluation: no sentence
that states a value stands in dialogues of both splits.
"""

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from selfplay.rng import derive
from selfplay.types import Task

PEOPLE = ("Ann", "Bob", "Eve", "Jim", "Liv", "Max", "Sue", "Tom")
VALUES: Mapping[str, tuple[str, ...]] = {
    "city": ("Rome", "Oslo", "Lima", "Cairo", "Kyoto", "Paris", "Quito", "Delhi"),
    "pet": ("cat", "dog", "owl", "fox", "hen", "pig", "rat", "bee"),
    "job": ("baker", "nurse", "pilot", "judge", "cook", "guide", "miner", "poet"),
    "drink": ("tea", "milk", "cider", "cocoa", "water", "juice", "mead", "soda"),
}
CHATTER = ("It rains.", "I am tired.", "What a day.", "I slept well.")
UNKNOWN = "unknown"
"""The right answer about what was denied and never said again."""

Split = Literal["train", "held_out"]
Kind = Literal["new", "update", "contradiction", "repeat", "chatter"]
KINDS: Mapping[Kind, float] = {
    "new": 4.0,
    "update": 2.0,
    "contradiction": 1.0,
    "repeat": 1.0,
    "chatter": 2.0,
}
"""How often each is said, where it can be."""


def values_of(person: str, attribute: str, split: Split) -> list[str]:
    """The values that a person can have: every fourth is held out, another one for each person."""
    values, offset = VALUES[attribute], PEOPLE.index(person)
    return [
        value
        for number, value in enumerate(values)
        if ((number + offset) % 4 == 0) == (split == "held_out")
    ]


def dialogue_task(
    rng: Random,
    *,
    number: int,
    split: Split,
    facts: int = 6,
    sessions: int = 2,
    questions: int = 4,
    people: int = 2,
    kinds: Mapping[Kind, float] = KINDS,
) -> Task:
    """One dialogue; at most `questions` questions, about what was said."""
    speakers = rng.sample(PEOPLE, people)
    known: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str], int] = {}
    said: list[dict[str, Any]] = []
    for place in range(facts):
        person = rng.choice(speakers)
        kind, attribute = _next(rng, person, known, kinds)
        if place == 0:
            kind, attribute = "new", rng.choice(list(VALUES))
        key = (person, attribute)
        text = rng.choice(CHATTER)
        if kind != "chatter":
            text = _say(rng, kind, key, known, split)
            last[key] = place if kind != "repeat" else last[key]
        session = place * sessions // facts + 1
        said.append({"text": text, "speaker": person, "time": f"day {session}", "kind": kind})
    asked = rng.sample(sorted(last), min(questions, len(last)))
    payload = {
        "facts": said,
        "questions": [
            {
                "question": f"What is {person}'s {attribute}?",
                "answer": known.get((person, attribute), UNKNOWN),
                # A denial is served by an entry that is not there.
                "evidence": [last[person, attribute]] if (person, attribute) in known else [],
            }
            for person, attribute in asked
        ],
    }
    content = derive(json.dumps(payload))
    return Task(id=f"{split}-{number}-{content:x}", type="dialogue", payload=payload)


def _next(
    rng: Random,
    person: str,
    known: Mapping[tuple[str, str], str],
    kinds: Mapping[Kind, float],
) -> tuple[Kind, str]:
    """What is said next, among what can be, and about which attribute."""
    have = [attribute for attribute in VALUES if (person, attribute) in known]
    lack = [attribute for attribute in VALUES if (person, attribute) not in known]
    can = [kind for kind in kinds if kind == "chatter" or (lack if kind == "new" else have)]
    kind = rng.choices(can, [kinds[name] for name in can])[0]
    return kind, rng.choice(lack if kind == "new" else have or lack)


def _say(
    rng: Random,
    kind: Kind,
    key: tuple[str, str],
    known: dict[tuple[str, str], str],
    split: Split,
) -> str:
    """The sentence, after which `known` is as it says."""
    person, attribute = key
    if kind == "contradiction":
        return f"{person}'s {attribute} is not {known.pop(key)}."
    if kind == "repeat":
        return f"{person}'s {attribute} is {known[key]}."
    others = [value for value in values_of(person, attribute, split) if value != known.get(key)]
    known[key] = rng.choice(others)
    return f"{person}'s {attribute} is {'now ' if kind == 'update' else ''}{known[key]}."


def dialogues(
    *,
    count: int,
    split: Split = "train",
    facts: int = 6,
    sessions: int = 2,
    questions: int = 4,
    people: int = 2,
    kinds: Mapping[Kind, float] | None = None,
    seed: int = 0,
) -> list[Task]:
    """`count` dialogues of so many facts, said by so many people in so many sessions.

    `kinds` replaces how often each kind of fact is said; a kind that it leaves out keeps its own.
    """
    if min(count, facts, sessions, questions) < 1:
        raise ValueError("count, facts, sessions and questions are at least 1")
    if not 1 <= people <= len(PEOPLE):
        raise ValueError(f"people is 1 to {len(PEOPLE)}, not {people}")
    weights = {**KINDS, **(kinds or {})}
    if min(weights.values()) < 0 or not weights["new"] or not weights["chatter"]:
        raise ValueError("kinds: no weight is negative, and new and chatter are said now and then")
    return [
        dialogue_task(
            Random(derive(seed, "dialogue", split, number)),
            number=number,
            split=split,
            facts=facts,
            sessions=sessions,
            questions=questions,
            people=people,
            kinds=weights,
        )
        for number in range(count)
    ]


STATEMENT = re.compile(r"(\w+)'s (\w+) is (not |now )?(\w+)\.?$")


def best_operation(fact: str, memories: Sequence[Mapping[str, str]]) -> str:
    """What a perfect manager does, given the fact and the entries that it is shown."""
    stated = STATEMENT.search(fact)
    if not stated:
        return '{"event":"NOOP"}'
    person, attribute, change, value = stated.groups()
    about = [
        (memory["id"], found[4])
        for memory in memories
        if (found := STATEMENT.search(memory["text"])) and found.group(1, 2) == (person, attribute)
    ]
    if change == "not ":
        gone = [name for name, text in about if text == value]
        return json.dumps({"event": "DELETE", "id": gone[0]}) if gone else '{"event":"NOOP"}'
    if not about:
        return '{"event":"ADD"}'
    name, text = about[0]
    return '{"event":"NOOP"}' if text == value else json.dumps({"event": "UPDATE", "id": name})


def read(question: str, memories: Sequence[str]) -> str:
    """What the memories say to a question: the first of them that speaks of it, if any does.

    The scripted reader of the memory arena. It believes the nearest memory, so that a bank which
    holds the old beside the new answers by chance of retrieval.
    """
    asked = re.fullmatch(r"What is (\w+)'s (\w+)\?", question)
    for memory in memories:
        stated = STATEMENT.search(memory)
        if asked and stated and stated.group(1, 2) == asked.groups() and stated[3] != "not ":
            return stated[4]
    return UNKNOWN


class TinyReader:
    """`read` as an object that a config names."""

    def __call__(self, question: str, memories: Sequence[str]) -> str:
        """The answer."""
        return read(question, memories)
