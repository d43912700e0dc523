"""Demonstrations of the form of operations and answers in the memory arena, for a language model.

The manager chooses among the possible operations at random, and the answer agent names the value of
a random memory. The warm start therefore teaches how they write, and neither what to remember nor
which memory answers a question.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from arenas.memory.arena import MANAGER, Memory
from arenas.memory.demonstrations import demonstration
from arenas.memory.dialogues import UNKNOWN
from arenas.memory.small_talk import stated
from selfplay.types import Demonstration, Task


class SmallTalkForm:
    """Stream of random operations and answers in dialogues of `arenas.memory.small_talk`."""

    def __init__(
        self, *, arena: Memory, tasks: Sequence[Task], form: str = "It is {answer}."
    ) -> None:
        """Args:
        arena: Arena that plays the dialogues, with its limits on the bank and the observations.
        tasks: Dialogues, without held-out ones.
        form: Text of an answer; `{answer}` stands for a value.
        """
        if arena.reader or arena.writer or arena.reflector or not tasks:
            raise ValueError(
                "demonstrations need dialogues, and an arena without a reader, extractor, "
                "summarizer or reflector"
            )
        if form.count("{answer}") != 1:
            raise ValueError(f"form: {form!r} does not contain {{answer}} once")
        self.arena, self.tasks, self.form = arena, tasks, form

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end: of each dialogue all answers, one operation of a
        manager that sees memories, and one of a manager that sees none."""
        while True:
            operations, answers = self._dialogue(rng.choice(self.tasks), rng)
            for some in (True, False):
                found = [
                    each for each in operations if bool(each.observation.fields["memories"]) == some
                ]
                yield from rng.sample(found, min(1, len(found)))
            yield from answers

    def _dialogue(self, task: Task, rng: Random) -> tuple[list[Demonstration], list[Demonstration]]:
        """Return the manager's turns and the answer agents' turns of a dialogue."""
        arena, operations, answers = self.arena, [], []
        arena.begin(task, rng.randrange(2**32))
        while not arena.finished:
            actions: dict[str, str | None] = dict.fromkeys(arena.stage)
            for agent in arena.stage:
                seen = arena.view(agent)
                memories: Sequence[Mapping[str, str]] = seen.fields["memories"]
                if agent == MANAGER:
                    event, name = any_operation([memory["id"] for memory in memories], rng)
                    actions[agent] = json.dumps({"event": event, "id": name})
                    operations.append(
                        demonstration("memory_manager", seen, f"{event} {name}".strip())
                    )
                else:  # an answer does not change any later observation
                    said = any_answer([memory["text"] for memory in memories], rng)
                    said = self.form.replace("{answer}", said)
                    answers.append(demonstration("answer_agent", seen, said))
            arena.play_stage(actions)
        return operations, answers


def any_operation(ids: Sequence[str], rng: Random) -> tuple[str, str]:
    """Return a random event and the random id of an entry, which is empty for ADD and NOOP."""
    event = rng.choice(["ADD", "NOOP", "UPDATE", "DELETE"] if ids else ["ADD", "NOOP"])
    return event, rng.choice(ids) if event in ("UPDATE", "DELETE") else ""


def any_answer(memories: Sequence[str], rng: Random) -> str:
    """Return the value of a random memory; `UNKNOWN` if none states a value."""
    values = [found[2] for memory in memories if (found := stated(memory))]
    return rng.choice(values) if values else UNKNOWN
