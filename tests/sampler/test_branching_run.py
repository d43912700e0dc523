"""Tests of branching, replays and dropped groups in whole runs with an executor."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_process import SMOKE, finished, metrics, run

ONE_STEP = (SMOKE, "run.steps=1", "evaluations.held_out_sampled.every=0", "run.name=mine")


def trained(folder: Path, *overrides: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the metrics and the recorded episodes of one step."""
    finished()  # makes the warm start
    outcome = run("train", *ONE_STEP, *overrides, cwd=folder)
    assert outcome.code == 0, outcome.err
    place = folder / "runs/mine"
    lines = (place / "episodes/000001.jsonl").read_text().splitlines()
    return metrics(place)[-1], list(map(json.loads, lines))


def test_a_tree_is_played_credited_and_recorded(tmp_path: Path) -> None:
    values, records = trained(tmp_path, "sampler=tree", "sampler.candidates=2", "credit=agent_turn")
    branches = [one["episode"] for one in records if one["episode"]["branch_of"] is not None]
    assert values["sampler/branches"] == len(branches) > 0
    assert values["episodes/failed"] == values["curriculum/same_step_duplicates"] == 0
    # Valid proposals have branches; a branch solves the proposal of its parent.
    for branch in branches:
        assert branch["shared_turns"] == 1 and branch["created"] == []
        assert "valid_proposal" not in branch["metrics"] and branch["metrics"]["attempts"] == 2
    played = sum(len(one["episode"]["turns"]) - one["episode"]["shared_turns"] for one in records)
    assert values["policy/base/samples"] == played
    own = [a for one in records for a in one["advantages"][one["episode"]["shared_turns"] :]]
    assert len(own) == played and None not in own and any(own)


@pytest.mark.slow
def test_replays_without_an_action_ask_the_executor_again(tmp_path: Path) -> None:
    values, records = trained(tmp_path, "credit=counterfactual", "credit.returns=own")
    turns = sum(len(one["episode"]["turns"]) for one in records)
    assert values["credit/replays"] == turns + len(records)
    assert values["credit/replays_failed"] == values["credit/beyond_moves_share"] == 0
    # A missing answer is paid -1, so an answer is credited with its reward plus 1.
    for one in records:
        for turn, advantage in zip(one["episode"]["turns"], one["advantages"], strict=True):
            if turn["role"] == "solver":
                assert advantage == turn["reward"] + 1.0


@pytest.mark.slow
def test_a_kept_group_has_signal_as_its_credit_compares(tmp_path: Path) -> None:
    _, records = trained(
        tmp_path,
        "credit=rloo",
        "credit.group_by=agent",
        "sampler=dynamic",
        "sampler.group_size=2",
        "sampler.rounds=2",
    )
    groups: dict[str, list[float | None]] = {}
    for one in records:
        groups.setdefault(one["group"], []).extend(one["advantages"])
    kept = [advantages for advantages in groups.values() if None not in advantages]
    assert kept and all(any(advantages) for advantages in kept)
