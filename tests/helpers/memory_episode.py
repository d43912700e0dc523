"""An episode of a memory manager with every kind of operation."""

import json

from arenas.memory.arena import MANAGER, Memory, raw_env
from selfplay.types import Episode, Task
from tests.helpers.builders import episode as made
from tests.helpers.builders import turn

FACTS = [
    {"text": text, "speaker": "Ann", "time": f"day {n}"}
    for n, text in enumerate(("one", "two", "three", "four", "five", "six", "seven"))
]


PAYLOAD = {
    "earlier": FACTS[:1],
    "facts": FACTS[1:],
    "questions": [{"question": "what?", "answer": "six"}],
}


SAID = (
    '{"event": "ADD"}',
    '{"memory": [{"event": "UPDATE", "id": "0", "text": "one and three"}, {"event": "ADD", '
    '"text": "else"}]}',
    '{"event": "DELETE", "id": "1"}',
    '{"event": "DELETE", "id": "1"}',
    '{"memory": [{"event": "NONE"}]}',
    '{"event": "UPDATE", "id": "0"}',
)


def played() -> tuple[Episode, Memory]:
    """Return an episode with every kind of operation and a refused one, and its arena."""
    arena = raw_env(most_operations=2)
    task = Task(id="t", payload=PAYLOAD)
    arena.begin(task, seed=0)
    turns = []
    for action in SAID:
        arena.play_stage({MANAGER: action})
        turns.append(turn(MANAGER, action=action, info=dict(arena.notes[MANAGER])))
    answer = json.dumps({"answer": "six", "memories": ["0", "0", "77"]})
    arena.play_stage({"answer_agent_0": answer})
    notes = dict(arena.notes["answer_agent_0"])
    turns.append(turn("answer_agent_0", action=answer, info=notes))
    return made(*turns, task=task), arena
