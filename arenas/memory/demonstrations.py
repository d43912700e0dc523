"""Demonstrations for the memory arena, for the warm start of a tiny model in all of its roles.

The warm start first shows the correct behaviour and then, at the end, mostly bad habits: an
extractor or a summarizer that writes each sentence with probability 1/2, and a reflector that
chooses any entries, useful and useless ones equally often; a manager that keeps everything or
nothing, or overwrites the nearest entry; an answer agent that copies any memory, adds words to the
answer, or says that it is unknown. Training has to discover the best behaviour. The cost of the
other agents' habits appears only in the answers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from arenas.memory.arena import EXTRACTOR, MANAGER, SUMMARIZER, Memory
from arenas.memory.dialogues import (
    CHATTER,
    PEOPLE,
    STATEMENT,
    UNKNOWN,
    VALUES,
    best_choice,
    best_facts,
    best_merge,
    best_operation,
    best_summaries,
    read,
    sentences_of,
)
from selfplay.types import Demonstration, Observation, Task

MANAGING: Mapping[str, float] = {"keep": 6.0, "ignore": 2.0, "overwrite": 1.0, "careful": 1.0}
"""Weights of a manager's habits when training begins."""
ANSWERING: Mapping[str, float] = {"any": 2.0, "wordy": 3.0, "unknown": 1.0, "careful": 4.0}
"""Weights of an answer agent's habits when training begins."""

EXTRACTING: Mapping[str, float] = {"any": 1.0, "all": 0.0, "nothing": 0.0, "careful": 0.0}
"""Weights of an extractor's habits when training begins."""

SUMMARIZING: Mapping[str, float] = {"any": 1.0, "careful": 0.0}
"""Weights of a summarizer's habits when training begins."""

REFLECTING: Mapping[str, float] = {"any": 1.0, "first": 0.0, "careful": 0.0}
"""Weights of a reflector's habits when training begins."""

ADD, NOOP = '{"event":"ADD"}', '{"event":"NOOP"}'
MARKER = "**Answer:** "
NONE = "none"


class MemoryDemonstrations:
    """Stream of operations and answers from whole dialogues, with a random habit per turn."""

    def __init__(
        self,
        *,
        arena: Memory,
        tasks: Sequence[Task],
        managing: Mapping[str, float] = MANAGING,
        answering: Mapping[str, float] = ANSWERING,
        extracting: Mapping[str, float] = EXTRACTING,
        summarizing: Mapping[str, float] = SUMMARIZING,
        reflecting: Mapping[str, float] = REFLECTING,
        practice_share: float = 0.9,
        practice_until: float = 0.8,
    ) -> None:
        """Args:
        arena: Arena that plays the dialogues, with its limits on the bank and the observations.
        tasks: Dialogues, without held-out ones.
        managing: Weights of the manager's habits in the last part of the warm start, which the
            policy imitates when training begins.
        answering: Weights of the answer agent's habits in the last part.
        extracting: Weights of the extractor's habits in the last part.
        summarizing: Weights of the summarizer's habits in the last part.
        reflecting: Weights of a reflector's habits in the last part.
        practice_share: Fraction of turns before that part that are careful, while the task is
            learned; the others have a habit by the weights.
        practice_until: Start of the last part, as a fraction of the warm start.
        """
        for name, habits, known in (
            ("managing", managing, MANAGING),
            ("answering", answering, ANSWERING),
            ("extracting", extracting, EXTRACTING),
            ("summarizing", summarizing, SUMMARIZING),
            ("reflecting", reflecting, REFLECTING),
        ):
            if not set(habits) <= set(known) or min(habits.values(), default=0.0) < 0:
                raise ValueError(f"{name}: needs weights, at least 0, for {', '.join(known)}")
            if not sum(habits.values()):
                raise ValueError(f"{name}: no habit has a weight")
        if arena.reader or not tasks:
            raise ValueError("demonstrations need dialogues, and an arena without a reader")
        self.arena, self.tasks = arena, tasks
        self.managing, self.answering = managing, answering
        self.extracting, self.summarizing = extracting, summarizing
        self.reflecting = reflecting
        self.merging = "NOOP" not in arena.operations
        self.practice_share, self.practice_until = practice_share, practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end: all answers of a dialogue, and of every other role at
        most as many turns."""
        practice = self.practice_share if progress < self.practice_until else 0.0
        while True:
            shown = self._dialogue(rng.choice(self.tasks), rng, practice)
            answers = shown.pop("answer_agent")
            for turns in shown.values():
                yield from rng.sample(turns, min(len(answers), len(turns)))
            yield from answers

    def _dialogue(self, task: Task, rng: Random, practice: float) -> dict[str, list[Demonstration]]:
        """Return the turns of a dialogue by role; those of other roles before the answers."""
        arena = self.arena
        shown: dict[str, list[Demonstration]] = {role: [] for role in arena.roles}
        arena.begin(task, rng.randrange(2**32))
        while not arena.finished:
            actions: dict[str, str | None] = dict.fromkeys(arena.stage)
            for agent in arena.stage:
                seen = arena.view(agent)
                if agent == EXTRACTOR:
                    facts = extraction(seen, _drawn(self.extracting, rng, practice), rng)
                    actions[agent] = json.dumps({"facts": facts})
                    said = "\n".join(facts) or NONE
                    shown["fact_extractor"].append(demonstration("fact_extractor", seen, said))
                elif agent == SUMMARIZER:
                    made = summaries(seen, _drawn(self.summarizing, rng, practice), rng)
                    memories = [{"summary": text, "reference": [n]} for text, n in made]
                    actions[agent] = json.dumps({"extracted_memories": memories})
                    said = "\n".join(f"{text} [{n}]" for text, n in made) or NONE
                    shown["summarizer"].append(demonstration("summarizer", seen, said))
                elif agent == MANAGER:
                    habit = _drawn(self.managing, rng, practice)
                    said = operation(seen, habit, merging=self.merging)
                    actions[agent] = said
                    shown["memory_manager"].append(demonstration("memory_manager", seen, said))
                elif agent.startswith("reflector_"):
                    chosen = reflection(seen, _drawn(self.reflecting, rng, practice), rng)
                    actions[agent] = json.dumps({"memories": chosen})
                    said = "".join(f"[{name}]" for name in chosen) or NONE
                    shown["reflector"].append(demonstration("reflector", seen, said))
                else:  # an answer does not change any later observation
                    said = answer(seen, _drawn(self.answering, rng, practice), rng)
                    shown["answer_agent"].append(demonstration("answer_agent", seen, said))
            arena.play_stage(actions)
        return shown

    def pieces(self) -> list[str]:
        """Return the fixed strings of prompts and completions, one token each."""
        found = ["Memory\n", "Answer\n", "Fact: ", "What is ", "?\n", "'s "]
        found += [" is ", " is now ", " is not ", ". [", "]\n", "["]
        found += ["]\n" + MARKER, MARKER, "It is ", UNKNOWN]
        found += [ADD, NOOP, '{"event": "UPDATE", "id": "', '{"event": "DELETE", "id": "', '"}']
        found += [*PEOPLE, *VALUES, *CHATTER]
        found += [value for values in VALUES.values() for value in values]
        if self.arena.writer == EXTRACTOR:
            found += ["Turn\n", NONE, ". ", ".\n", "."]
        if self.arena.summarizer:
            found += ["Session\n", NONE, " [", "]", ".\n", "."]
        if self.arena.reflector:
            found += ["Choose\n", NONE, "]["]
        return list(dict.fromkeys(found))


def demonstration(role: str, seen: Observation, said: str) -> Demonstration:
    """Return the demonstration of a role that sees an observation and says a text."""
    return Demonstration(role=role, observation=seen, completion=said)


def _drawn(habits: Mapping[str, float], rng: Random, practice: float) -> str:
    if rng.random() < practice:
        return "careful"
    return rng.choices(list(habits), list(habits.values()))[0]


def extraction(seen: Observation, habit: str, rng: Random) -> list[str]:
    """Return the facts of an extractor with this habit."""
    sentences = sentences_of(seen.fields["turn"])
    if habit == "careful":
        return best_facts(seen.fields["turn"])
    if habit == "any":
        return [sentence for sentence in sentences if rng.random() < 0.5]
    return sentences if habit == "all" else []


def summaries(seen: Observation, habit: str, rng: Random) -> list[tuple[str, int]]:
    """Return the summaries of a summarizer with this habit, each with the place of its turn."""
    turns, speaker = seen.fields["turns"], seen.fields["speaker"]
    if habit == "careful":
        return best_summaries(turns, speaker)
    return [
        (sentence, turn["place"])
        for turn in turns
        if turn["speaker"] == speaker
        for sentence in sentences_of(turn["text"])
        if rng.random() < 0.5
    ]


def reflection(seen: Observation, habit: str, rng: Random) -> list[str]:
    """Return the ids that a reflector with this habit chooses."""
    memories: Sequence[Mapping[str, str]] = seen.fields["memories"]
    kept = seen.fields["kept"]
    if habit == "careful":
        return best_choice(seen.fields["question"], memories)
    names = [memory["id"] for memory in memories]
    return rng.sample(names, min(kept, len(names))) if habit == "any" else names[:kept]


def operation(seen: Observation, habit: str, *, merging: bool = False) -> str:
    """Return the operation of a manager with this habit; with `merging`, a careful manager only
    adds or merges."""
    memories: Sequence[Mapping[str, str]] = seen.fields["memories"]
    if habit == "careful":
        return (best_merge if merging else best_operation)(seen.fields["fact"], memories)
    if habit == "ignore":
        return NOOP
    if habit == "overwrite" and memories:
        return json.dumps({"event": "UPDATE", "id": memories[0]["id"]})
    return ADD


def answer(seen: Observation, habit: str, rng: Random) -> str:
    """Return the answer of an answer agent with this habit."""
    memories: Sequence[Mapping[str, str]] = seen.fields["memories"]
    said = read(seen.fields["question"], [memory["text"] for memory in memories])
    if habit == "unknown" or (said == UNKNOWN and habit != "any"):
        return MARKER + UNKNOWN
    found = [
        (memory["id"], stated[4])
        for memory in memories
        if (stated := STATEMENT.search(memory["text"])) and (habit == "any" or stated[4] == said)
    ]
    if not found:
        return MARKER + UNKNOWN
    name, value = rng.choice(found) if habit == "any" else found[0]
    words = f"It is {value}." if habit == "wordy" else value
    return f"[{name}]\n{MARKER}{words}"
