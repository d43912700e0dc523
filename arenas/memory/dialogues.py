"""Small dialogues with known facts for the memory arena; every question has one right answer.

Two people talk about themselves over several sessions. A sentence is new, replaces an earlier one
(an update), denies it (a contradiction), repeats it, or is irrelevant. Each kind has an optimal
operation on the bank, which `best_operation` returns. A turn has one sentence, or several; those
that state something are its facts, which `best_facts` returns.

Every person and attribute has separate values for training and for evaluation, so that the splits
share no sentence that states a value.
"""

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from arenas.splits import Split
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
"""Right answer about a value that was denied and not stated again."""

Kind = Literal["new", "update", "contradiction", "repeat", "chatter"]
KINDS: Mapping[Kind, float] = {
    "new": 4.0,
    "update": 2.0,
    "contradiction": 1.0,
    "repeat": 1.0,
    "chatter": 2.0,
}
"""Weights of the kinds, among those possible at a point of the dialogue."""


def values_of(person: str, attribute: str, split: Split) -> list[str]:
    """Return the values of a person in a split: every fourth is held out, shifted per person."""
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
    sentences: int = 1,
) -> Task:
    """Return a dialogue with at most `questions` questions about its facts.

    It has `facts` turns of `sentences` sentences each.
    """
    speakers = rng.sample(PEOPLE, people)
    known: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str], int] = {}
    said: list[dict[str, Any]] = []
    for place in range(facts * sentences):
        turn, further = divmod(place, sentences)
        person = said[turn]["speaker"] if further else rng.choice(speakers)
        kind, attribute = _next(rng, person, known, kinds)
        if place == 0:
            kind, attribute = "new", rng.choice(list(VALUES))
        key = (person, attribute)
        text = rng.choice(CHATTER)
        if kind != "chatter":
            text = _say(rng, kind, key, known, split)
            last[key] = turn if kind != "repeat" else last[key]
        if further:
            said[turn]["text"] += f" {text}"
            said[turn]["kind"] += f" {kind}"
            continue
        session = turn * sessions // facts + 1
        said.append({"text": text, "speaker": person, "time": f"day {session}", "kind": kind})
    asked = rng.sample(sorted(last), min(questions, len(last)))
    payload = {
        "facts": said,
        "questions": [
            {
                "question": f"What is {person}'s {attribute}?",
                "answer": known.get((person, attribute), UNKNOWN),
                # After a denial, the right bank has no entry for the value.
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
    """Draw the kind of the next sentence, among the possible ones, and its attribute."""
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
    """Return the sentence, and update `known`."""
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
    sentences: int = 1,
    seed: int = 0,
) -> list[Task]:
    """Return `count` dialogues with these numbers of facts, sessions, questions and people.

    `kinds` replaces weights of `KINDS`; a kind that it omits keeps its weight. With several
    `sentences`, `facts` is the number of turns, each with this many sentences of one speaker.

    Args:
        count: Number of dialogues.
        split: train or held_out.
        facts, sessions, questions, people: Their numbers in a dialogue.
        kinds: Weight of each kind of message; None: `KINDS`.
        sentences: Sentences of a turn.
        seed: Seed of the draw.
    """
    if min(count, facts, sessions, questions, sentences) < 1:
        raise ValueError("count, facts, sessions, questions and sentences are at least 1")
    if not 1 <= people <= len(PEOPLE):
        raise ValueError(f"people is 1 to {len(PEOPLE)}, not {people}")
    weights = {**KINDS, **(kinds or {})}
    if min(weights.values()) < 0 or not weights["new"] or not weights["chatter"]:
        raise ValueError("kinds: weights must be 0 or more, and those of new and chatter above 0")
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
            sentences=sentences,
        )
        for number in range(count)
    ]


def sentences_of(turn: str) -> list[str]:
    """Return the sentences of a turn."""
    return re.split(r"(?<=\.) ", turn)


def best_facts(turn: str) -> list[str]:
    """Return the facts of a perfect extractor: the sentences that state something, once each."""
    return list(dict.fromkeys(text for text in sentences_of(turn) if STATEMENT.search(text)))


def best_summaries(turns: Sequence[Mapping[str, Any]], speaker: str) -> list[tuple[str, int]]:
    """Return the summaries of a perfect summarizer: the last statement of a session about each
    value of the speaker, and the place of its turn."""
    last: dict[tuple[str, ...], tuple[str, int]] = {}
    for turn in turns:
        for text in sentences_of(turn["text"]) if turn["speaker"] == speaker else ():
            if stated := STATEMENT.search(text):
                topic = stated.group(1, 2)
                last.pop(topic, None)  # so that the summaries are in the order of their turns
                last[topic] = (text, turn["place"])
    return list(last.values())


QUESTION = re.compile(r"What is (\w+)'s (\w+)\?")
STATEMENT = re.compile(r"(\w+)'s (\w+) is (not |now )?(\w+)\.?$")


def best_operation(fact: str, memories: Sequence[Mapping[str, str]]) -> str:
    """Return the operation of a perfect manager for the fact and the shown entries."""
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


def best_merge(summary: str, memories: Sequence[Mapping[str, str]]) -> str:
    """Return the operation of a perfect manager that can only add or merge: the summary replaces
    the shown entry about the same value, or is added if there is none."""
    stated = STATEMENT.search(summary)
    for memory in memories:
        known = STATEMENT.search(memory["text"])
        if stated and known and known.group(1, 2) == stated.group(1, 2):
            return json.dumps({"event": "UPDATE", "id": memory["id"]})
    return '{"event":"ADD"}'


def best_choice(question: str, memories: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the id of the newest entry about a question's value; [] if it denies the value, or if
    there is no such entry."""
    asked = QUESTION.fullmatch(question)
    about = [
        (int(memory["id"].partition(".")[0]), memory["id"], stated[3])
        for memory in memories
        if (stated := STATEMENT.search(memory["text"]))
        and asked
        and stated.group(1, 2) == asked.groups()
    ]
    _, name, change = max(about, default=(0, "", "not "))
    return [] if change == "not " else [name]


def read(question: str, memories: Sequence[str]) -> str:
    """Return the value in the first memory that answers a question, or `UNKNOWN`.

    This is the scripted reader of the memory arena. It uses the nearest memory: if a bank contains
    both an old and a new value, the answer depends on the retrieval.
    """
    asked = QUESTION.fullmatch(question)
    for memory in memories:
        stated = STATEMENT.search(memory)
        if asked and stated and stated.group(1, 2) == asked.groups() and stated[3] != "not ":
            return stated[4]
    return UNKNOWN


class TinyReader:
    """`read` as an object that a config names."""

    def __call__(self, question: str, memories: Sequence[str]) -> str:
        """Return the answer of `read`."""
        return read(question, memories)
