"""Tests of the planned workload of a step, compared with samplers and curricula."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfplay.config import compose
from selfplay.models.population import Population
from selfplay.plan.recorded_workload import of_run
from selfplay.plan.workload import Assumptions, Lesson, Workload, of_config
from selfplay.run.directory import Run
from selfplay.sampler.tree import GoOn, Tree
from tests.helpers.builders import episode, group, turn
from tests.helpers.walks import sampled

STAGES = 4


def planned(*overrides: str, **assumed: Any) -> Workload:
    return of_config(compose.load(list(overrides)), Assumptions(**assumed))


def by_role(asked: Workload) -> dict[str, float]:
    return {flow.role: flow.requests for flow in asked.flows}


@pytest.mark.parametrize("go_on", ["all", "best", "random"])
@pytest.mark.parametrize(("candidates", "depth"), [(2, 3), (3, 2), (3, 1)])
def test_a_tree_is_planned_as_it_is_played(go_on: GoOn, candidates: int, depth: int) -> None:
    groups = sampled(Tree(candidates=candidates, depth=depth, go_on=go_on), steps=STAGES)
    episodes = [episode for group in groups for episode in group.episodes]
    played = [turn.stage for e in episodes for turn in e.turns[e.shared_turns :]]
    asked = planned(
        "+experiment=tiny/sirius",  # four agents, one after the other
        "sampler=tree",
        f"sampler.candidates={candidates}",
        f"sampler.depth={depth}",
        f"sampler.go_on={go_on}",
        tasks=len(groups),
    )
    assert [flow.requests for flow in asked.flows] == [played.count(n) for n in range(STAGES)]
    assert asked.episodes == len(episodes)


def test_malt_plays_all_of_its_tree() -> None:
    asked = planned("+experiment=paper/malt")
    assert asked.turns == 16 * (3 + 9 + 27) and asked.episodes == 16 * 27
    # A stage reads one prompt for each move of the stage before.
    assert [flow.prompts for flow in asked.flows] == [16, 16 * 3, 16 * 9]


@pytest.mark.parametrize("name", ["paper/ladder", "tiny/ladder"])
def test_a_ladder_solves_its_batch_and_the_variants_that_it_asks_for(name: str) -> None:
    settings = compose.load([f"+experiment={name}"])["curriculum"]
    asked = by_role(planned(f"+experiment={name}"))
    assert asked["proposer"] == settings["proposals"]
    assert asked["solver"] == 8 * (settings["batch"] + settings["proposals"])


def test_a_mixture_is_planned_by_its_shares() -> None:
    asked = planned("+experiment=tiny/mixture")
    # Of 64 tasks three quarters are programming, all of them proposals: 16 of each of three types.
    assert by_role(asked) == {
        "absolute_zero_proposer": 48,
        "absolute_zero_solver": 48 * 8,
        "kuhn_player": 16 * 2,
    }
    assert asked.episodes == 64


def test_a_record_without_advantages_is_planned(tmp_path: Path) -> None:
    settings = compose.load(["+experiment=tiny/smoke"])
    run = Run.create(tmp_path / "run", settings)
    turns = [turn("solver_0", 1.0, policy="base", prompt_ids=(1, 2, 3)) for _ in range(2)]
    run.record(1, {"policy/base/idle_samples": 1.0}, [group(episode(*turns), name="g")], [])
    file = tmp_path / "run" / "episodes" / "000001.jsonl"
    line = json.loads(file.read_text())
    for advantages in ([], [0.0]):
        file.write_text(json.dumps({**line, "advantages": advantages}) + "\n")
        lesson = of_run(settings, tmp_path / "run").lessons["base"]
        assert lesson.samples == 2 - len(advantages)  # a sample of advantage 0 is idle


@pytest.mark.parametrize("name", compose.choices("experiment"))
def test_every_experiment_can_be_planned(name: str) -> None:
    settings = compose.load([f"+experiment={name}"])
    asked = of_config(settings, Assumptions())
    assert asked.turns > 0 and asked.episodes > 0
    population = Population.of(settings)
    assert {flow.policy for flow in asked.flows} <= set(population.policies)


def test_the_passes_of_a_learner_are_those_that_a_run_makes() -> None:
    """A run corrects samples if its engine or its learner computes other log-probabilities."""
    quickstart = ("+experiment=tiny/quickstart", "objective.kl=0", "objective.correction=auto")

    def lesson(*changes: str, on_gpu: bool = False) -> Lesson:
        config = compose.load([*quickstart, *changes])
        return next(iter(of_config(config, Assumptions(), on_gpu=on_gpu).lessons.values()))

    assert lesson().passes == 0
    assert lesson(on_gpu=True).passes == lesson("learner.precision=bfloat16").passes == 1
    assert lesson("learner.precision=float32", on_gpu=True).passes == 0
    assert lesson("objective.correction=none", on_gpu=True).passes == 0
    assert lesson("objective.kl=0.1").passes == 1
    traces = compose.load(["+experiment=tiny/debate", "credit=preference", "objective=dpo"])
    pairs = next(iter(of_config(traces, Assumptions()).lessons.values()))
    assert pairs.passes == 1  # DPO always reads the reference
    twice = lesson("learner.mini_batches=3", "learner.epochs=2")
    assert (twice.updates, twice.epochs) == (6, 2)


def test_a_mixture_with_phases_is_planned_by_its_longest_phase() -> None:
    phases = "curriculum.phases=[{steps: 10, shares: {kuhn: 1}}, {steps: 90, shares: {signal: 1}}]"
    found = by_role(planned("+experiment=tiny/three_games", "curriculum.shares=null", phases))
    plain = by_role(planned("+experiment=tiny/three_games"))
    signal = [name for name in plain if name.startswith("signal_")]
    assert signal and all(found[name] == pytest.approx(3 * plain[name]) for name in signal)
    assert not [name for name in plain if name not in signal and found.get(name)]


def test_without_replay_solvers_get_the_proposals_alone() -> None:
    for replay, tasks in (("true", 16), ("false", 4)):
        changes = [f"curriculum.replay={replay}", "curriculum.proposals=4"]
        changes += ["curriculum.solver_batch=16", "curriculum.types=[deduction]"]
        found = planned("+experiment=tiny/quickstart", *changes)
        plain = {flow.role: flow.requests for flow in found.flows}
        assert plain["solver"] / plain["proposer"] == pytest.approx(tasks / 4 * 8)
