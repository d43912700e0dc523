"""Tests of `selfplay replay`: rewards and advantages under the run's config and under another."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from selfplay.errors import RunError
from selfplay.experiment.replay import Difference, Replay, _group
from selfplay.run.record_reader import Recorded
from tests.helpers.builders import episode, turn
from tests.helpers.command_process import SMOKE, copy_of_finished, finished, one_line, run

SHORT = ("run.steps=1", "evaluations.held_out_sampled.every=0")


def replayed(folder: Path, *overrides: str, cwd: Path) -> dict[str, Any]:
    outcome = run("replay", str(folder), *overrides, "--json", cwd=cwd)
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def credited(folder: Path, step: int) -> list[tuple[float, Any]]:
    """Return the reward and the advantage of every recorded turn of a step."""
    lines = (folder / "episodes" / f"{step:06d}.jsonl").read_text().splitlines()
    return [
        (turn["reward"], advantage)
        for line in map(json.loads, lines)
        for turn, advantage in zip(line["episode"]["turns"], line["advantages"], strict=True)
    ]


def recorded_episodes(folder: Path) -> int:
    """Return the number of episodes in the record of a run."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("episodes/*.jsonl"))


def trained(folder: Path, *overrides: str) -> Path:
    finished()  # it makes the warm start that the new run uses
    outcome = run("train", SMOKE, *SHORT, *overrides, "run.name=mine", cwd=folder)
    assert outcome.code == 0, outcome.err
    return folder / "runs/mine"


def test_a_replay_under_the_runs_config_equals_the_record(tmp_path: Path) -> None:
    found = replayed(finished(), cwd=tmp_path)
    turns = sum(len(credited(finished(), step)) for step in (1, 2, 3))
    assert found["steps"] == 3 and found["differences"] == [] and found["unplayed"] == {}
    assert found["rewards"] == found["advantages"] == turns > 50
    text = run("replay", str(finished()), cwd=tmp_path).out
    assert f"rewards as recorded: {turns} of {turns}" in text


@pytest.mark.parametrize(
    "overrides",
    [
        ("sampler=tree", "sampler.candidates=2", "credit=agent_turn"),
        pytest.param(("shaping=overlong", "credit=rae"), marks=pytest.mark.slow),
        pytest.param(("sampler=dynamic", "sampler.group_size=2"), marks=pytest.mark.slow),
    ],
)
def test_a_replay_with_branches_shaping_or_dropped_groups_equals_the_record(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    found = replayed(trained(tmp_path, *overrides), cwd=tmp_path)
    assert found["differences"] == [] and found["unplayed"] == {}
    assert 0 < found["advantages"] <= found["rewards"]


@pytest.mark.slow
def test_progress_that_is_paid_in_a_later_step_is_replayed(tmp_path: Path) -> None:
    """A designer is paid when its game is played again, by metrics and created tasks."""
    options = ("credit=learning_progress", "arena.pay=none", "evaluations=none")
    steps = ("run.steps=4", "run.episodes_every=1", "run.threads=1", "run.name=mine")
    outcome = run("train", "+experiment=tiny/envgen", *options, *steps, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    rows = map(json.loads, (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines())
    assert sum(row.get("credit/designer/paid", 0) for row in rows) > 0
    found = replayed(tmp_path / "runs/mine", cwd=tmp_path)
    assert found["differences"] == [] and found["unplayed"] == {} and found["advantages"] > 0


def test_a_replay_under_another_config_equals_a_new_run(tmp_path: Path) -> None:
    """The first step samples from the same weights, so only rewards and advantages differ."""
    other = ("credit=rloo", "arena.malformed=-3")
    fresh = credited(trained(tmp_path, *other), 1)
    found = replayed(finished(), *other, "--steps", "1", cwd=tmp_path)
    recorded = credited(finished(), 1)
    rewards = {d["replayed"] for d in found["differences"] if d["what"] == "reward"}
    assert rewards == {-3.0} and found["rewards"] == len(recorded) == len(fresh)
    changed = [
        (what, new[place])
        for old, new in zip(recorded, fresh, strict=True)
        for place, what in enumerate(("reward", "advantage"))
        if old[place] != new[place]
    ]
    assert [(d["what"], d["replayed"]) for d in found["differences"]] == changed


def test_a_users_credit_method_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "mine/credit").mkdir(parents=True)
    (tmp_path / "mine/credit/own.yaml").write_text("_target_: selfplay.credit.rloo.RLOO\n")
    shipped = replayed(finished(), "credit=rloo", "--steps", "1", cwd=tmp_path)
    own = ("credit=own", "--config-dir", "mine", "--steps", "1")
    assert replayed(finished(), *own, cwd=tmp_path) == shipped and shipped["differences"]


def test_a_record_that_was_changed_is_found(tmp_path: Path) -> None:
    folder = copy_of_finished(tmp_path)
    path = folder / "episodes/000002.jsonl"
    lines = path.read_text().splitlines()
    line = json.loads(lines[1])
    line["episode"]["turns"][0]["reward"] = 7.5
    path.write_text("\n".join([lines[0], json.dumps(line), *lines[2:]]) + "\n")
    outcome = run("replay", "runs/copy", cwd=tmp_path)
    assert outcome.code == 2 and "not reproduced under its own config: 1 " in one_line(outcome.err)
    assert f"step 2, group {line['group']}, member {line['member']}, turn 0" in outcome.out
    assert "reward 7.50 -> " in outcome.out


def test_an_episode_that_cannot_be_replayed_is_counted(tmp_path: Path) -> None:
    found = replayed(finished(), "arena.solvers=3", cwd=tmp_path)
    assert found["unplayed"]
    assert all("a replay needs the record's own arena" in reason for reason in found["unplayed"])
    # Episodes with a refused proposal have no turn of a solver, so they can be replayed. Their
    # number and that of all episodes depend on the samples, which differ between processors.
    assert found["episodes"] + sum(found["unplayed"].values()) == recorded_episodes(finished())
    assert found["episodes"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("credit=gae",), "trains a critic, whose values are not in the record"),
        (
            ("credit=rae", "--steps", "2"),
            "step 2: credit selfplay.credit.rae.RAE keeps",
        ),
        (("credit=rlo",), "no credit named 'rlo'; did you mean 'rloo'?"),
        (("--steps", "9"), ": no episodes of --steps 9; near it are those of 1, 2, 3"),
        (("curriculum=arithmetic",), "cannot read the state of the run's curriculum"),
        (("arena.nothing=1",), "unknown key 'arena.nothing'"),
    ],
)
def test_a_refused_replay_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    outcome = run("replay", str(finished()), *arguments, cwd=tmp_path)
    assert outcome.code == 2 and words in one_line(outcome.err)


@pytest.mark.parametrize("parent", [-1, 1, 5])
def test_a_branch_of_no_earlier_episode_is_a_damaged_record(parent: int) -> None:
    episodes = [episode(turn("a_0")), episode(turn("a_0"), branch_of=parent)]
    records = [
        Recorded(step=3, line=n + 1, group="3.0.0", member=n, advantages=[], episode=each)
        for n, each in enumerate(episodes)
    ]
    with pytest.raises(RunError, match=f"group 3.0.0: episode 1 branches off episode {parent}, "):
        _group(records, episodes)


def test_the_lines_contain_no_control_characters() -> None:
    attack = "\x1b]0;owned\x07\x1b[31m\u202e\nfake line"
    difference = Difference(
        step=1, group=attack, member=0, turn=0, agent=attack, what="reward", recorded=0, replayed=1
    )
    found = Replay(differences=[difference] * 6, paid={attack: (0.0, 1.0)})
    found.unplayed[attack] = 1
    lines = found.lines()
    assert len(lines) == 11 and all(line.isprintable() for line in lines)
    assert sum("owned" in line for line in lines) == 7


def test_steps_after_the_newest_checkpoint_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = copy_of_finished(tmp_path)
    shutil.rmtree(folder / "checkpoints/000003")
    found = replayed(folder, cwd=tmp_path)
    assert found["unsaved"] == 1 and found["steps"] == 2 and found["differences"] == []
    outcome = run("replay", "runs/copy", "--steps", "3", cwd=tmp_path)
    assert outcome.code == 2 and "steps 3 to 3 come after the newest" in one_line(outcome.err)


def test_a_run_without_episodes_says_so(tmp_path: Path) -> None:
    folder = copy_of_finished(tmp_path)
    for path in (folder / "episodes").iterdir():
        path.unlink()
    outcome = run("replay", "runs/copy", cwd=tmp_path)
    assert outcome.code == 2 and "train with run.episodes_every=1" in one_line(outcome.err)
