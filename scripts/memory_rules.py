"""Prints the scores of fixed rules on the held-out dialogues of a memory experiment.

Each rule of the first table replaces the memory manager in the evaluation `held_out_read`, where a
scripted reader answers from the bank:

- add: adds every sentence;
- update first: replaces the first entry that it sees, and adds if it sees none;
- update first, no chatter: the same, but ignores sentences that state nothing;
- perfect: replaces the entry about the same person and topic, deletes a denied value, adds other
  statements, and ignores sentences that state nothing.

The second table needs no bank: the fraction of the questions whose answer is the first value, or
the last one, that the dialogue states for the person and topic.

Usage: python scripts/memory_rules.py tiny/memory
       python scripts/memory_rules.py smollm2/memory
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from hydra.utils import instantiate

from arenas.memory.arena import MANAGER
from arenas.memory.dialogues import QUESTION, STATEMENT, best_operation
from arenas.memory.small_talk import asked_for, stated
from selfplay.config.compose import load
from selfplay.credit.rewards import mean
from selfplay.rollout.setup import Components
from selfplay.types import Task

Shown = Sequence[Mapping[str, str]]
Rule = Callable[[str, Shown], dict[str, str]]

ADD, NOOP = {"event": "ADD"}, {"event": "NOOP"}


def statement(text: str) -> tuple[str, str, str, bool] | None:
    """Return person, topic and value of a sentence, and True if it denies the value.

    None for a sentence that states nothing. Messages of small talk begin with the name of the
    speaker and a colon.
    """
    if ": " in text:
        parts = stated(text)
        return (*parts, False) if parts else None
    found = STATEMENT.search(text)
    return (found[1], found[2], found[4], found[3] == "not ") if found else None


def topic_of(question: str) -> tuple[str, str] | None:
    """Return the person and topic that a question asks for."""
    found = QUESTION.fullmatch(question)
    return (found[1], found[2]) if found else asked_for(question)


def update_first(fact: str, shown: Shown) -> dict[str, str]:
    """Replace the first entry, for every sentence."""
    return {"event": "UPDATE", "id": shown[0]["id"]} if shown else ADD


def perfect(fact: str, shown: Shown) -> dict[str, str]:
    """Keep one entry for each person and topic."""
    if ": " not in fact:
        operation: dict[str, str] = json.loads(best_operation(fact, shown))
        return operation
    parts = stated(fact)
    if parts is None:
        return NOOP
    for entry in shown:
        known = stated(entry["text"])
        if known and known[:2] == parts[:2]:
            return {"event": "UPDATE", "id": entry["id"]}
    return ADD


RULES: Mapping[str, Rule] = {
    "add": lambda fact, shown: ADD,
    "update first": update_first,
    "update first, no chatter": lambda fact, shown: (
        update_first(fact, shown) if statement(fact) else NOOP
    ),
    "perfect": perfect,
}


def exact_match(arena: Any, task: Task, rule: Rule) -> float:
    """Return the exact match of a dialogue whose manager follows a rule."""
    arena.begin(task, seed=0)
    while not arena.finished:
        seen = arena.view(MANAGER).fields
        arena.play_stage({MANAGER: json.dumps(rule(seen["fact"], seen["memories"]))})
    return float(arena.metrics["exact_match"])


def value_score(tasks: Sequence[Task], place: int) -> float:
    """Return the fraction of questions that the first (0) or last (-1) stated value answers."""
    right: list[bool] = []
    for task in tasks:
        statements = [each for turn in task.payload["facts"] if (each := statement(turn["text"]))]
        for question in task.payload["questions"]:
            topic = topic_of(question["question"])
            values = [each[2] for each in statements if each[:2] == topic and not each[3]]
            right.append(bool(values) and values[place] == question["answer"])
    return mean(right)


def main() -> None:
    """Print both tables for an experiment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", help="tiny/memory or smollm2/memory")
    settings: dict[str, Any] = load([f"+experiment={parser.parse_args().experiment}"])
    evaluation = settings["evaluations"]["held_out_read"]
    held_out: Sequence[Task] = instantiate(evaluation["tasks"])
    with closing(Components(settings)) as parts:
        arena = parts.arena_factory(evaluation["arena"], where="evaluations.held_out_read.arena")()
        print(f"exact match of a scripted reader, {len(held_out)} dialogues, by the manager's rule")
        for name, rule in RULES.items():
            scores = [exact_match(arena, task, rule) for task in held_out]
            print(f"  {name:26}{mean(scores):7.1%}")
    training: Sequence[Task] = instantiate(settings["curriculum"]["tasks"])
    print("questions that one value answers: held out, in training")
    for name, place in (("first value stated", 0), ("last value stated", -1)):
        print(f"  {name:26}{value_score(held_out, place):7.1%}{value_score(training, place):7.1%}")


if __name__ == "__main__":
    main()
