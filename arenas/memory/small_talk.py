"""Dialogues in plain English for the memory arena, for a pretrained language model.

Two people talk about where they live, their work and their pets. A message is new, replaces an
earlier one (an update), or says nothing that a question asks for (chatter). Names, values, chatter
and the wordings of statements and questions of held-out dialogues do not occur in training.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from arenas.memory.dialogues import UNKNOWN
from arenas.splits import Split
from selfplay.rng import derive
from selfplay.types import Task

Kind = Literal["new", "update", "chatter"]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One attribute of a person, with the words of one split."""

    values: tuple[str, ...]
    """Values that the attribute can have."""
    new: tuple[str, ...]
    """Wordings of a first statement; `{}` stands for the value."""
    update: tuple[str, ...]
    """Wordings of a statement that replaces an earlier value."""
    questions: tuple[str, ...]
    """Wordings of a question; `{}` stands for the name of the person."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE: Mapping[Split, tuple[str, ...]] = {
    "train": _words(
        "Anna Boris Clara David Emma Felix Grace Henry Irene Jacob Karen Louis Maria Nina Oscar "
        "Paula"
    ),
    "held_out": _words("Peter Rosa Simon Tina Victor Wendy Walter Sarah"),
}
TOPICS: Mapping[Split, Mapping[str, Topic]] = {
    "train": {
        "city": Topic(
            values=_words(
                "Paris Oslo Lima Cairo Tokyo Berlin Madrid Dublin Vienna Boston Sydney Prague "
                "Delhi Athens Seattle Zurich"
            ),
            new=("I live in {}.", "My home is in {}.", "I have lived in {} for years."),
            update=("I moved to {} last week.", "I live in {} now.", "My home is {} these days."),
            questions=("Where does {} live?", "In which city does {} live?"),
        ),
        "job": Topic(
            values=_words(
                "nurse baker pilot judge lawyer teacher farmer painter waiter plumber dentist "
                "singer tailor barber guard writer"
            ),
            new=("I work as a {}.", "I am a {} by trade.", "My job is that of a {}."),
            update=("I work as a {} now.", "I changed jobs and became a {}.", "I am a {} now."),
            questions=("What is the job of {}?", "What does {} work as?"),
        ),
        "pet": Topic(
            values=_words(
                "cat dog parrot rabbit hamster goldfish turtle pony lizard canary mouse snake"
            ),
            new=("My pet is a {}.", "I have a {} at home.", "I keep a {}."),
            update=("My pet is a {} now.", "I gave my pet away and got a {}.", "I keep a {} now."),
            questions=("What pet does {} have?", "Which animal does {} keep?"),
        ),
    },
    "held_out": {
        "city": Topic(
            values=_words("Rome Lisbon Warsaw Moscow Toronto Denver Kyoto Havana"),
            new=("I am at home in {}.", "My house is in {}."),
            update=("I have just moved to {}.", "My new home is in {}."),
            questions=("In what city is the home of {}?",),
        ),
        "job": Topic(
            values=_words("doctor driver chemist butcher gardener miner sailor librarian"),
            new=("I earn my living as a {}.", "I am employed as a {}."),
            update=("My new job is that of a {}.", "I have just started to work as a {}."),
            questions=("What job does {} have?",),
        ),
        "pet": Topic(
            values=_words("goat ferret duck spider pigeon frog puppy kitten"),
            new=("At home I have a {} as a pet.", "I own a {}."),
            update=("My new pet is a {}.", "I now have a {} instead."),
            questions=("What animal does {} have as a pet?",),
        ),
    },
}
CHATTER: Mapping[Split, tuple[str, ...]] = {
    "train": (
        "What lovely weather today!",
        "I slept badly last night.",
        "How are you doing?",
        "Thank you, that is kind.",
        "I am really tired today.",
        "Did you watch the game?",
        "See you later!",
        "That made me laugh.",
    ),
    "held_out": (
        "It is raining again.",
        "I had a good breakfast.",
        "Nice to talk to you!",
        "What time is it?",
        "I feel great this morning.",
    ),
}


def small_talk(
    *,
    count: int,
    split: Split = "train",
    facts: int = 2,
    updates: int = 1,
    chatter: int = 1,
    questions: int = 2,
    people: int = 2,
    seed: int = 0,
) -> list[Task]:
    """Return `count` dialogues of `facts + updates + chatter` messages in random order.

    `facts` counts pairs of a person and a topic. A dialogue asks for the current value of
    `questions` of these pairs.

    Args:
        count: Number of dialogues.
        split: train or held_out.
        facts: Pairs of a person and a topic in a dialogue.
        updates: Messages that change a fact.
        chatter: Messages without a fact.
        questions: Questions after a dialogue.
        people: Persons in a dialogue.
        seed: Seed of the draw.
    """
    if min(count, facts, questions) < 1 or min(updates, chatter) < 0:
        raise ValueError(
            "count, facts and questions are at least 1, updates and chatter at least 0"
        )
    if split not in PEOPLE:
        raise ValueError(f"split: {' or '.join(PEOPLE)}, not {split!r}")
    known = len(PEOPLE[split])
    if not 1 <= people <= known:
        raise ValueError(f"people is 1 to {known}, not {people}")
    pairs = people * len(TOPICS[split])
    if not questions <= facts <= pairs:
        raise ValueError(
            f"facts: {facts}; {questions} to {pairs} fit {questions} questions about {people} "
            "people"
        )
    return [
        _dialogue(
            Random(derive(seed, "small talk", split, number)),
            number=number,
            split=split,
            facts=facts,
            updates=updates,
            chatter=chatter,
            questions=questions,
            people=people,
        )
        for number in range(count)
    ]


def _dialogue(
    rng: Random,
    *,
    number: int,
    split: Split,
    facts: int,
    updates: int,
    chatter: int,
    questions: int,
    people: int,
) -> Task:
    topics, speakers = TOPICS[split], rng.sample(PEOPLE[split], people)
    pairs = rng.sample([(person, name) for person in speakers for name in topics], facts)
    # The first message about a pair is new; later ones are updates.
    order: list[tuple[str, str] | None] = [*pairs, *rng.choices(pairs, k=updates)]
    order += [None] * chatter
    rng.shuffle(order)
    now: dict[tuple[str, str], tuple[str, int]] = {}
    said: list[dict[str, Any]] = []
    for place, pair in enumerate(order):
        kind: Kind = "chatter"
        person, words = rng.choice(speakers), rng.choice(CHATTER[split])
        if pair is not None:
            person, topic = pair[0], topics[pair[1]]
            kind, before = ("update", now[pair][0]) if pair in now else ("new", "")
            value = rng.choice([value for value in topic.values if value != before])
            words = rng.choice(topic.new if kind == "new" else topic.update).format(value)
            now[pair] = (value, place)
        said.append({"text": f"{person}: {words}", "speaker": person, "kind": kind})
    asked = [
        {
            "question": rng.choice(topics[pair[1]].questions).format(pair[0]),
            "answer": now[pair][0],
            "evidence": [now[pair][1]],
        }
        for pair in rng.sample(pairs, questions)
    ]
    payload = {"facts": said, "questions": asked}
    return Task(
        id=f"{split}-{number}-{derive(json.dumps(payload)):x}", type="small_talk", payload=payload
    )


def _pattern(wording: str) -> re.Pattern[str]:
    return re.compile(re.escape(wording).replace(r"\{\}", r"(\w+)"))


STATEMENTS = [
    (name, _pattern(wording))
    for topics in TOPICS.values()
    for name, topic in topics.items()
    for wording in (*topic.new, *topic.update)
]
QUESTIONS = [
    (name, _pattern(wording))
    for topics in TOPICS.values()
    for name, topic in topics.items()
    for wording in topic.questions
]


def stated(text: str) -> tuple[str, str, str] | None:
    """Return the person, the topic and the value that a message states; None for other texts."""
    person, _, words = text.partition(": ")
    for name, pattern in STATEMENTS:
        if found := pattern.fullmatch(words):
            return person, name, found[1]
    return None


def asked_for(question: str) -> tuple[str, str] | None:
    """Return the person and the topic of a question; None for other texts."""
    for name, pattern in QUESTIONS:
        if found := pattern.fullmatch(question):
            return found[1], name
    return None


class SmallTalkReader:
    """Scripted answer agent: reads the value in the first memory that answers a question."""

    def __call__(self, question: str, memories: Sequence[str]) -> str:
        """Return the value, or `UNKNOWN` if no memory states it."""
        for memory in memories:
            found = stated(memory)
            if found and found[:2] == asked_for(question):
                return found[2]
        return UNKNOWN
