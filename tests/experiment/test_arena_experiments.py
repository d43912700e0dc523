"""Tests of the documented modes of the experiments on memory, debate and collaboration."""

import pytest

from selfplay.config import compose, plain_data
from selfplay.experiment.experiment import check
from selfplay.models.population import Population

MANAGER_FIRST = "[{learn: [memory_manager], steps: 100}, {learn: [answer_agent], steps: 100}]"
ALTERNATING = "[{learn: [answer_agent], steps: 5}, {learn: [memory_manager], steps: 5}]"


@pytest.mark.parametrize(
    "changes",
    [
        ["+experiment=paper/memory_r1", "+population.overrides={answer_agent: {learn: false}}"],
        [
            "+experiment=paper/memory_r1",
            "arena.reader={_target_: arenas.memory.dialogues.TinyReader}",
        ],
        ["+experiment=tiny/memory", f"population.phases={MANAGER_FIRST}"],
        ["+experiment=tiny/memory", f"population.phases={ALTERNATING}"],
        ["+experiment=tiny/memory", "+population.overrides={answer_agent: {learn: false}}"],
        ["+experiment=paper/maporl", "arena.aggregate=judge", "roles=debate_with_judge"],
        ["+experiment=paper/maporl", "arena.incentives.corrected_by_others=0.5"],
        ["+experiment=paper/judged_debate", "arena.no_verdict=coin"],
        ["+experiment=paper/magrpo", "arena.turns=2"],
        ["+experiment=paper/magrpo", "credit.joint=cross"],
        ["+experiment=paper/malt", "sampler.go_on=best"],
        ["+experiment=tiny/collaboration", "+population.overrides.main.learn=false"],
        [
            "+experiment=tiny/collaboration",
            "arena.turns=2",
            "warmstart.demonstrations.again=0.3",
        ],
    ],
    ids=" ".join,
)
def test_a_mode_composes_and_can_be_built(changes: list[str]) -> None:
    check(compose.load(changes))


LOCOMO = ["curriculum=locomo", "evaluations=locomo"]
PATHS = ["curriculum.tasks.path=x.json", "evaluations.held_out.tasks.path=x.json"]


@pytest.mark.parametrize(
    "changes", [["services=memory_embeddings", "arena.outcome=f1"], [*LOCOMO, *PATHS]], ids=" ".join
)
def test_a_mode_that_needs_a_package_or_a_file_composes(changes: list[str]) -> None:
    plain_data.check_config(compose.load(["+experiment=paper/memory_r1", *changes]))


@pytest.mark.parametrize(
    ("phases", "learning"),
    [
        (MANAGER_FIRST, {1: "memory_manager", 100: "memory_manager", 101: "answer_agent"}),
        (ALTERNATING, {1: "answer_agent", 6: "memory_manager", 11: "answer_agent"}),
        ("[]", {1: "both", 150: "both"}),
    ],
    ids=["manager first", "alternating", "both at once"],
)
def test_learning_roles_of_the_phases_of_memory_r1(phases: str, learning: dict[int, str]) -> None:
    composed = compose.load(["+experiment=paper/memory_r1", f"population.phases={phases}"])
    check(composed)
    population = Population.of(composed)
    roles = ["memory_manager", "answer_agent"]
    assert set(population.policies) == set(roles)
    for step, who in learning.items():
        found = [role for role in roles if population.learns(role, step)]
        assert found == (roles if who == "both" else [who])
