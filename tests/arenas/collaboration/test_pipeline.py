"""Tests of generator, verifier and refiner: their rewards, and the preference pairs of a tree."""

import json
import pickle
from collections.abc import Sequence
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.collaboration.pipeline import GENERATOR, REFINER, VERIFIER, Pipeline, env, raw_env
from roles.debater import Debater
from roles.player import Player
from selfplay.credit.preference_pairs import PreferencePairs
from selfplay.curriculum.fixed import FixedTasks
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.sampler.tree import Tree
from selfplay.types import Observation, Task

TASK = Task(id="t", payload={"question": "2 + 3", "answer": "5"})


def begun(**settings: Any) -> Pipeline:
    arena = raw_env(**settings)
    arena.begin(TASK, seed=0)
    return arena


def argued(answer: str, argument: str = "") -> str:
    return json.dumps({"answer": answer, "argument": argument})


def run(arena: Pipeline, *actions: str | None) -> None:
    for action in actions:
        arena.play_stage({arena.stage[0]: action})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/pipeline_v0")
    made.reset(seed=1)
    assert made.agent_selection == GENERATOR


def test_all_three_agents_are_paid_for_the_answer_of_the_refiner() -> None:
    for first, last, moved in (("4", "5", (1, 0)), ("5", "4", (0, 1)), ("5", "5", (0, 0))):
        arena = begun()
        run(arena, argued(first), "check the sum", argued(last))
        right = float(last == "5")
        assert arena.paid == {GENERATOR: right, VERIFIER: right, REFINER: right}
        assert (arena.metrics["corrections"], arena.metrics["spoiled"]) == moved
        assert arena.metrics["accuracy"] == right and arena.finished
        assert arena.metrics["first_accuracy"] == float(first == "5")


def test_a_malformed_action_has_a_verdict_and_costs_its_agent() -> None:
    arena = begun(malformed=-0.5)
    run(arena, "no json")
    assert arena.notes[GENERATOR]["verdict"] == "malformed"
    run(arena, None)
    assert arena.notes[VERIFIER]["verdict"] == "malformed"
    run(arena, argued("5"))
    assert arena.paid == {GENERATOR: 0.5, VERIFIER: 0.5, REFINER: 1.0}
    arena = begun(malformed=-0.5)
    run(arena, argued("5"), "right", argued("x" * 101))
    assert arena.paid == {GENERATOR: 0.0, VERIFIER: 0.0, REFINER: -0.5}


def test_forks_pickles_and_replays() -> None:
    arena = begun()
    run(arena, argued("4", "because"), "no")
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    assert isinstance(twin, Pipeline) and loaded.verifier is None
    loaded.verifier = arena.verifier
    for each in (arena, twin, loaded):
        run(each, argued("5"))
    assert arena.paid == twin.paid == loaded.paid
    arena.replay(list(arena.history))
    assert arena.paid == twin.paid and arena.metrics == twin.metrics


def test_hostile_text_raises_nothing() -> None:
    noise = "".join(map(chr, Random(0).choices(range(0x110000), k=1_000_000)))
    arena = begun(argument_length=10)
    run(arena, noise, noise)
    assert len(arena.view(REFINER).fields["critique"]) == 10
    run(arena, "[" * 900_000)
    assert arena.finished and arena.metrics["accuracy"] == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        begun(answer_length=0)


@pytest.mark.parametrize("style", ["full", "sentence", "terse"])
def test_each_role_sees_what_was_said_before(style: str) -> None:
    arena = begun()
    generator, refiner = (Debater(game=game, style=style) for game in ("generator", "refiner"))
    critic = Player(game="critic", style=style)

    def said(answer: str) -> str:
        return f"The answer is {answer}." if style == "sentence" else f"<answer>{answer}</answer>"

    assert "2 + 3" in generator.prompt(arena.view(GENERATOR))[0]["content"]
    run(arena, generator.parse(f"REASON {said('41')}"))
    assert "41" in critic.prompt(arena.view(VERIFIER))[0]["content"]
    run(arena, critic.parse(" CRITIQUE "))
    text = str(refiner.prompt(arena.view(REFINER))[0]["content"])
    assert "41" in text and "CRITIQUE" in text and ("REASON" in text) == (style == "full")
    run(arena, refiner.parse(said("5")))
    assert arena.metrics["corrections"] == 1.0


def test_a_tree_of_pipelines_makes_pairs_for_each_role() -> None:
    # The scores of the refinements by (generation, critique). The value of a generation is the mean
    # of its critiques, and the value of a critique is the mean of its refinements.
    right = {("a", "x"): (1, 0), ("a", "y"): (0, 0), ("b", "x"): (1, 1), ("b", "y"): (1, 0)}
    made: dict[tuple[str, ...], int] = {}

    def words(agent: str, seen: Observation, rng: Random) -> str:
        where = (agent, seen.fields["answer"], seen.fields["critique"])
        number = made[where] = made.get(where, -1) + 1
        if agent == GENERATOR:
            return f"<answer>{'ab'[number]}</answer>"
        if agent == VERIFIER:
            return "xy"[number]
        score = right[where[1], where[2]][number]
        return f"<answer>{'5' if score else 'wrong'}</answer>"

    def seat(role: Any) -> AgentSpec:
        return AgentSpec(role=role, policy="p", renderer=ByteRenderer())

    rollout = Rollout(
        arena=raw_env,
        agent_specs={
            "generator": seat(Debater(game="generator")),
            "verifier": seat(Player(game="critic")),
            "refiner": seat(Debater(game="refiner")),
        },
        engines={"p": ScriptedEngine({"p": words})},
    )
    sampler = Tree(candidates=2, depth=3)
    (group,) = sampler.sample(FixedTasks(tasks=[TASK], batch=1), rollout.run, step=1, seed=0)
    assert len(group.episodes) == 8 and not any(episode.error for episode in group.episodes)
    samples = PreferencePairs(pairs="all").assign([group])
    pairs: dict[str, list[Any]] = {}
    for sample in samples:
        pairs.setdefault(sample.pair, []).append(sample)
    found: dict[str, list[Sequence[str]]] = {"generator": [], "verifier": [], "refiner": []}
    for better, worse in pairs.values():
        assert (better.advantage, worse.advantage) == (1.0, -1.0)
        assert better.turn.prompt_ids == worse.turn.prompt_ids
        found[better.turn.role].append((better.turn.text, worse.turn.text))
    # V(b) = (1 + 0.5) / 2 > V(a) = (0.5 + 0) / 2; x beats y after a and after b.
    assert found["generator"] == [("<answer>b</answer>", "<answer>a</answer>")]
    assert found["verifier"] == [("x", "y"), ("x", "y")]
    assert found["refiner"] == [("<answer>5</answer>", "<answer>wrong</answer>")] * 2
