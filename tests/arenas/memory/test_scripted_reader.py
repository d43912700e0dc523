"""A memory manager alone, before a scripted reader: what its operations are worth."""

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


def test_the_best_manager_serves_a_reader_perfectly_and_others_do_not() -> None:
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


def test_an_operation_left_out_changes_what_a_reader_answers() -> None:
    questions = asked(("What is Ann's city?", "Oslo"))
    update = '{"event": "UPDATE", "id": "0"}'
    facts = said("Ann's city is Rome.", "Ann's city is now Oslo.", "It rains.")
    paid = []
    for actions in ([ADD, update, ADD], [NOOP, update, ADD], [ADD, NOOP, ADD], [ADD, update, NOOP]):
        arena = begun(facts, questions, reader=TinyReader())
        manage(arena, *actions)
        paid.append(arena.paid[MANAGER])
    assert paid == [1.0, 0.0, 0.0, 1.0]


def test_counterfactual_credit_of_an_operation_is_what_it_was_worth() -> None:
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
    # In the end the bank says nothing of a city: half of the answers are right. Without the DELETE
    # both would be; the others changed nothing that was left.
    assert [sample.advantage for sample in samples] == [0.0, 0.0, 0.0, -0.5]
    script = iter([ADD, '{"event": "UPDATE", "id": "0"}', ADD, NOOP])
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    samples = credit.assign([Group(id="1.0.0", episodes=(episode,))])
    assert [sample.advantage for sample in samples] == [0.5, 0.5, 0.0, 0.0]
