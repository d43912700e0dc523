"""Texts about the colours of people's houses: tasks of any length, and demonstrations of a reader.

A text says many times who has a house of which colour. The question asks for one person, whose
house may be painted again: the last statement counts.
"""

import json
from collections.abc import Iterator
from random import Random

from selfplay.rng import derive
from selfplay.types import Demonstration, Observation, Task

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Elsa", "Finn", "Gina", "Hugo", "Ida", "Jon")
COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink", "gold")
COLOUR = "which colour?"
"""End of a question."""
NOTHING = "nothing"
"""Memory of a reader that has not met the person yet."""


def is_held_out(name: str, colour: str) -> bool:
    """Return True for one pair of person and colour in five, chosen by a hash. No training question
    about the person has this answer."""
    return derive("colours", name, colour) % 5 == 0


def colour_texts(
    *,
    count: int,
    parts: int = 4,
    statements: int = 3,
    repainted: float = 0.5,
    split: str = "train",
    seed: int = 0,
) -> list[Task]:
    """Return texts with a question each; their type is "parts_<number>".

    Raises ValueError for a number below 1 and for an unknown split.

    Args:
        count: Number of texts.
        parts: Number of parts of a text.
        statements: Number of statements of a part.
        repainted: Probability that a text states another colour of the person in an earlier part,
            if the last colour is not stated in the first part.
        split: train or held_out, by the pair of person and last colour.
        seed: Seed of the texts.
    """
    if min(count, parts, statements) < 1 or split not in ("train", "held_out"):
        raise ValueError(
            "count, parts and statements are at least 1, and split is train or held_out"
        )
    rng = Random(derive(seed, "colour texts", parts, statements, split))
    return [_text(rng, number, parts, statements, repainted, split) for number in range(count)]


def _text(
    rng: Random, number: int, parts: int, statements: int, repainted: float, split: str
) -> Task:
    name, colour = _pair(rng, split == "held_out")
    written = [[statement(*_other(rng, name)) for _ in range(statements)] for _ in range(parts)]
    place = rng.randrange(parts)
    written[place][rng.randrange(statements)] = statement(name, colour)
    if place and rng.random() < repainted:
        former = rng.choice([each for each in COLOURS if each != colour])
        written[rng.randrange(place)][rng.randrange(statements)] = statement(name, former)
    texts = [" ".join(each) for each in written]
    payload = {"question": asked(name), "parts": texts, "answer": colour}
    content = derive(json.dumps(payload))
    return Task(
        id=f"colours-{parts}-{split}-{number}-{content:x}", type=f"parts_{parts}", payload=payload
    )


def _pair(rng: Random, held_out: bool) -> tuple[str, str]:
    while True:
        pair = rng.choice(NAMES), rng.choice(COLOURS)
        if is_held_out(*pair) == held_out:
            return pair


def _other(rng: Random, name: str) -> tuple[str, str]:
    return rng.choice([each for each in NAMES if each != name]), rng.choice(COLOURS)


def statement(name: str, colour: str) -> str:
    """Return a sentence about a person."""
    return f"{_subject(name)}{colour}."


def asked(name: str) -> str:
    """Return the question about a person."""
    return f"{_subject(name)}{COLOUR}"


def _subject(name: str) -> str:
    """Return the words before the colour, which are one token of a tiny model."""
    return f"{name}'s house is "


class ColourDemonstrations:
    """Demonstrations of a reader that is careful at first and careless at the end.

    A careful reader keeps the person's last colour, and answers with it. A careless one writes a
    colour of the part, or forgets. An answer from an empty memory is a random colour. The
    demonstrations never show a held-out pair of the asked person and a colour, neither as memory
    nor as answer.
    """

    def __init__(
        self,
        *,
        careful: float = 0.5,
        statements: int = 3,
        practice_until: float = 0.8,
        answers: float = 0.2,
        named: float = 0.8,
    ) -> None:
        """Args:
        careful: Fraction of careful turns in the last part of the warm start, which the policy
            imitates when training begins; all turns are careful before that part.
        statements: Number of statements of a part.
        practice_until: Start of the last part, as a fraction of the warm start.
        answers: Fraction of demonstrations that answer.
        named: Fraction of parts that name the person; a tiny model needs many of them to find
            statements at all.
        """
        if not all(0 <= each <= 1 for each in (careful, practice_until, answers, named)):
            raise ValueError("careful, practice_until, answers and named are from 0 to 1")
        if statements < 1:
            raise ValueError(f"statements is at least 1, not {statements}")
        self.careful, self.statements = careful, statements
        self.practice_until, self.answers, self.named = practice_until, answers, named

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end; `progress` is the fraction of the warm start so far."""
        careful = 1.0 if progress < self.practice_until else self.careful
        while True:
            name, colour = _pair(rng, held_out=False)
            usual = [each for each in COLOURS if not is_held_out(name, each)]
            memory = rng.choice(["", NOTHING, *usual])
            if rng.random() < self.answers:
                kept = memory if memory in COLOURS else rng.choice(usual)
                yield _shown(f"{asked(name)} | {memory}", kept)
                continue
            about = [_other(rng, name) for _ in range(self.statements)]
            if rng.random() < self.named:
                about[rng.randrange(self.statements)] = name, colour
            said = dict(about).get(name, memory or NOTHING)
            if rng.random() >= careful:
                said = rng.choice([NOTHING, *(each for _, each in about if each in usual)])
            part = " ".join(statement(*each) for each in about)
            yield _shown(f"{asked(name)} | {memory} | {part}", said)

    def pieces(self) -> list[str]:
        """Return the fixed strings of prompts and completions, one token each."""
        return [*map(_subject, NAMES), *COLOURS, COLOUR, NOTHING, ". ", " | "]


def _shown(text: str, said: str) -> Demonstration:
    return Demonstration(role="reader", observation=Observation(text=text), completion=said)
