"""Tests of a memory manager with a scripted reader: the value of its operations."""

from random import Random

from arenas.memory.arena import MANAGER, Memory, raw_env
from arenas.memory.dialogues import TinyReader, best_operation, dialogues
from roles.memory_manager import MemoryManager
from selfplay.credit.counterfactual import Counterfactual
from selfplay.credit.rewards import mean
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Group, Observation, Task
from tests.helpers.dialogues import ADD, NOOP, asked, begun, manage, said


def test_only_the_best_manager_gets_all_answers_of_a_reader_right() -> None:
    def value(manager: str) -> float:
        paid = []
        for task in dialogues(count=40, split="held_out", facts=8):
            arena, rng = raw_env(reader=TinyReader()), Random(1)
            arena.begin(task, seed=0)
            while not arena.finished:
                fields = arena.view(MANAGER).fields
                random = f'{{"event": "{rng.choice(["ADD", "NOOP"])}"}}'
                best = best_operation(fields["fact"], fields["memories"])
                manage(arena, {"best": best, "random": random, "noop": NOOP}[manager])
            assert arena.possible_agents == [MANAGER]
            paid.append(arena.paid[MANAGER])
        return mean(paid)

    assert value("best") == 1.0
    assert value("noop") < value("random") < 0.8


def test_an_omitted_operation_changes_the_answers_of_a_reader() -> None:
    questions = asked(("What is Ann's city?", "Oslo"))
    update = '{"event": "UPDATE", "id": "0"}'
    facts = said("Ann's city is Rome.", "Ann's city is now Oslo.", "It rains.")
    paid = []
    for actions in ([ADD, update, ADD], [NOOP, update, ADD], [ADD, NOOP, ADD], [ADD, update, NOOP]):
        arena = begun(facts, questions, reader=TinyReader())
        manage(arena, *actions)
        paid.append(arena.paid[MANAGER])
    assert paid == [1.0, 0.0, 0.0, 1.0]


def test_counterfactual_credit_is_the_value_of_an_operation() -> None:
    facts = said("Ann's city is Rome.", "Ann's city is now Oslo.", "It rains.", "It rains.")
    task = Task(
        id="t",
        payload={
            "facts": facts,
            "questions": asked(("What is Ann's city?", "Oslo"), ("What is Ann's pet?", "unknown")),
        },
    )
    script = iter([ADD, '{"event": "UPDATE", "id": "0"}', ADD, '{"event": "DELETE", "id": "0"}'])

    def words(agent: str, seen: Observation, rng: Random) -> str:
        return next(script)

    def arena() -> Memory:
        return raw_env(reader=TinyReader())

    agent_spec = AgentSpec(role=MemoryManager(), policy="p", renderer=ByteRenderer())
    engine = ScriptedEngine({"p": words})
    rollout = Rollout(
        arena=arena, agent_specs={"memory_manager": agent_spec}, engines={"p": engine}
    )
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    credit = Counterfactual(arena=arena, default='{"event": "NOOP"}', returns="own")
    samples = credit.assign([Group(id="1.0.0", episodes=(episode,))])
    # In the end the bank has no city, so one of two answers is right. Without the DELETE both would
    # be right; without any other operation the score would be the same.
    assert [sample.advantage for sample in samples] == [0.0, 0.0, 0.0, -0.5]
    script = iter([ADD, '{"event": "UPDATE", "id": "0"}', ADD, NOOP])
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    samples = credit.assign([Group(id="1.0.0", episodes=(episode,))])
    assert [sample.advantage for sample in samples] == [0.5, 0.5, 0.0, 0.0]
