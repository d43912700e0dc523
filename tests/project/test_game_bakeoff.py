"""Tests of the bake-off in games: configs, the choice of the rate, and results of runs."""

import json
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arenas.games.long_road import LongRoad
from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.engines.scripted import ScriptedEngine, choice
from selfplay.experiment.experiment import check
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Episode, Group, Status, Task, Turn
from tests.helpers.scripts import script

script("bakeoff_table")
games: Any = script("bakeoff_games")
bakeoff: Any = script("game_bakeoff")
GAMES = games.GAMES
ROAD = GAMES["long_road"]
APART = {
    *("advantage_alignment", "by_role", "experience", "learning_progress"),
    *("majority", "preference"),
}
"""Credit methods that need other rewards (such as rewards that differ between the agents) or
another objective, or that combine methods."""


@cache
def walks() -> Group:
    """Return random walks in the game of the experiment, with moves of one token."""
    engine = ScriptedEngine({"script": choice(["left", "right"])})
    agent_spec = AgentSpec(role=Role(), policy="script", renderer=ByteRenderer())
    rollout = Rollout(
        arena=LongRoad, agent_specs={"walker": agent_spec}, engines={"script": engine}
    )
    played = rollout.run([EpisodeSpec(task=Task(id="game"), seed=0, member=n) for n in range(8)])
    token: dict[str, Any] = {"completion_ids": (1,), "logprobs": (-1.0,), "loss_mask": (1,)}
    short = [replace(e, turns=tuple(replace(turn, **token) for turn in e.turns)) for e in played]
    return Group(id="g", episodes=tuple(short))


def advantages(name: str) -> np.ndarray:
    """Return the advantages of a credit method that compares each agent with itself."""
    config = compose.load(["+experiment=tiny/long_road", f"credit={name}"])["credit"]
    if "group_by" in config:
        config["group_by"] = "agent"
    samples = build(config, where="credit").assign([walks()])
    return np.array([sample.advantage for sample in samples])


def ended(folder: Path, passed: list[float], last: float) -> Path:
    """Write the folder of a run that passed these fractions of the forks in its steps."""
    folder.mkdir(parents=True)
    rows = [{"step": 0, "evaluation/road/passed": 0.25}]
    rows += [{"step": n, "arena/passed": each} for n, each in enumerate(passed, 1)]
    rows[-1]["evaluation/road/passed"] = last
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text("{}\n")
    (folder / "seconds.json").write_text("12.0\n")
    return folder


@pytest.mark.parametrize(
    ("game", "method"), [(name, method) for name, game in GAMES.items() for method in game.methods]
)
def test_every_method_can_be_run(game: str, method: str) -> None:
    check(compose.load([*GAMES[game].experiment, *GAMES[game].methods[method]]))


@pytest.mark.parametrize("game", list(GAMES))
def test_methods_differ_in_credit_and_sampler_alone(game: str) -> None:
    """The model, the objective, the tasks and the optimizer are those of the experiment."""
    found = [
        compose.load([*GAMES[game].experiment, *overrides])
        for overrides in GAMES[game].methods.values()
    ]
    for config in found:
        config.pop("credit"), config.pop("sampler")
        assert config == found[0]


@pytest.mark.parametrize("game", list(GAMES))
def test_the_metrics_of_a_game_exist(game: str) -> None:
    """A game's curve is a metric of its arena, and its final score one of an evaluation."""
    config = compose.load(GAMES[game].experiment)
    first, evaluation, metric = GAMES[game].final.split("/")
    assert first == "evaluation"
    assert metric in config["evaluations"][evaluation]["metrics"]
    assert GAMES[game].curve == f"arena/{metric}"


def test_every_credit_method_is_compared_in_the_long_game_or_refused_with_a_reason() -> None:
    compared = {name.split(",")[0] for name in ROAD.methods}
    same = {name for names in ROAD.same.values() for name in names}
    assert compared | same | {*ROAD.refused} | APART == {*compose.choices("credit")}


def test_methods_that_are_left_out_give_the_advantages_of_another_one_times_a_constant() -> None:
    found = {
        name: advantages(name) for name in ("rloo", "grpo", "rae", *chain(*ROAD.same.values()))
    }
    for name, others in ROAD.same.items():
        for other in others:
            ratios = found[other] / found[name]
            assert ratios == pytest.approx(ratios[0], rel=1e-5), other
    for name in ("grpo", "rloo"):
        ratios = found["rae"] / found[name]
        assert ratios != pytest.approx(ratios[0], rel=0.1)


def program(agent: str, task: str, reward: float) -> Turn:
    """Return the only turn of an agent in the collaboration on a program."""
    return Turn(
        agent=f"{agent}_0",
        role=agent,
        policy=agent,
        version=0,
        prompt_ids=tuple(f"{task} {agent}".encode()),
        completion_ids=(1,),
        logprobs=(-1.0,),
        loss_mask=(1,),
        action="program",
        reward=reward,
        stage=0,
    )


def test_in_one_stage_with_one_reward_some_methods_are_equal_up_to_a_constant() -> None:
    draw = np.random.default_rng(0)
    groups = [
        Group(
            id=task,
            episodes=tuple(
                Episode(
                    arena="collaboration",
                    task=Task(id=task),
                    seed=seed,
                    turns=tuple(program(agent, task, reward) for agent in ("helper", "main")),
                    status=Status.FINISHED,
                )
                for seed, reward in enumerate(draw.normal(size=16))
            ),
        )
        for task in ("a", "b")
    ]

    def assigned(name: str) -> np.ndarray:
        config = compose.load([*GAMES["collaboration"].experiment, f"credit={name}"])["credit"]
        return np.array([each.advantage for each in build(config, where="credit").assign(groups)])

    for name, others in GAMES["collaboration"].same.items():
        for other in others:
            ratios = assigned(other) / assigned(name)
            assert ratios == pytest.approx(ratios[0], rel=1e-4), other
    assert assigned("gigpo") == pytest.approx(2 * assigned("dr_grpo"))
    ratios = assigned("grpo") / assigned("rloo")
    assert ratios != pytest.approx(ratios[0], rel=0.01)


def test_methods_that_branch_sample_as_many_turns_as_the_others() -> None:
    """A branch of one of the 63 later rounds replays half of the rounds on average."""
    plain = compose.load(["+experiment=tiny/long_road"])["sampler"]["group_size"]
    branching = compose.load(["+experiment=tiny/long_road", *games.BRANCH])["sampler"]
    branches = branching["group_size"] - branching["initial"]
    assert branching["initial"] + branches / 2 == plain


def test_the_tuning_has_the_areas_of_its_own_seeds(tmp_path: Path) -> None:
    runs = bakeoff.Bakeoff(game=ROAD, folder=tmp_path, steps=2)
    for rate, passed in ((1e-3, [0.5, 0.7]), (3e-3, [0.3, 0.8])):
        ended(runs.place("rloo", rate, 100), passed, last=passed[-1])
    ended(runs.place("rloo", 3e-3, 0), [0.9, 0.9], last=0.9)  # a seed that is reported
    found = runs.tuning("rloo", [1e-3, 3e-3], 1)
    assert found == pytest.approx({1e-3: 0.6, 3e-3: 0.55})
    assert [*runs.tuning("gae", [3e-3], 1)] == [3e-3]  # nothing to choose: no run


def test_runs_that_ended_are_read_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = bakeoff.Bakeoff(game=ROAD, folder=tmp_path, steps=2)
    for seed in (0, 1):
        ended(runs.place("rloo", 1e-3, seed), [0.2, 0.4], last=0.5)
        ended(runs.place("gigpo, no discount", 1e-3, seed), [0.5, 0.7], last=0.8 + 0.1 * seed)
    arguments = [
        "long_road",
        "--methods",
        "rloo",
        "gigpo, no discount",
        "--seeds",
        "2",
        "--rates",
        "1e-3",
    ]
    bakeoff.main([*arguments, "--folder", str(tmp_path), "--draw", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    same = "0.300 (0.300 to 0.300)"
    assert (
        f"| `rloo` | 0.001 | 0.500 (0.500 to 0.500) | {same} | 0.000 (0.000 to 0.000) | 12 |"
        in lines
    )
    # Student's interval of 0.8 and 0.9: 12.706 times the standard error 0.05.
    final, area = "0.850 (0.215 to 1.485)", "0.600 (0.600 to 0.600)"
    assert f"| `gigpo, no discount` | 0.001 | {final} | {area} | {same} | 12 |" in lines
    assert f"rloo={tmp_path}/rloo-lr0.001-seed?" in lines[-1]
    assert (tmp_path / "bakeoff_long_road.svg").exists()
