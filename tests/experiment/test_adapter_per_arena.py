"""Tests of an adapter for each arena of `tiny/three_games`, over one base, as documented."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from selfplay.cli.main import main
from selfplay.config import compose
from tests.helpers.repository import ROOT

pytestmark = pytest.mark.usefixtures("without_charts")

OF_ROLE = {
    "kuhn_player": "kuhn_player",
    "tic_tac_toe_player": "tic_tac_toe_player",
    "signal_scout": "signal",
    "signal_partner": "signal",
}
"""Policy of every role."""
SMALL = [
    "warmstart.steps=2",
    "warmstart.model={hidden: 16, layers: 1, heads: 2, intermediate: 32}",
    "warmstart.demonstrations.parts.tic_tac_toe.most=2",
    "curriculum.batch=3",
    "sampler.group_size=8",
    "credit=rae",  # it has a signal where all returns are equal, as with an untrained model
    "evaluations=none",
    "run.threads=1",
    "run.steps=2",
    "run.checkpoint_every=1",
    "run.episodes_every=1",
]


def shipped(words: str) -> list[str]:
    """Return the overrides of the command with these words in the experiment's header."""
    text = (ROOT / "configs/experiment/tiny/three_games.yaml").read_text()
    (line,) = [line for line in text.splitlines() if words in line]
    return shlex.split(line.lstrip("# "))[2:]


def test_each_arena_trains_an_adapter_of_its_own_and_the_base_stays(tmp_path: Path) -> None:
    name = [f"run.folder={tmp_path}", "run.name=r"]
    assert main(["train", *shipped("population=adapters"), *SMALL, *name]) == 0
    run = tmp_path / "r"
    lines = [
        json.loads(line)
        for path in sorted((run / "episodes").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    turns: list[Any] = [turn for line in lines for turn in line["episode"]["turns"]]
    assert {turn["role"]: turn["policy"] for turn in turns} == OF_ROLE
    checkpoints = [run / f"checkpoints/{step:06d}" for step in (1, 2)]
    for policy in set(OF_ROLE.values()):
        first, second = (
            load_file(place / f"policies/{policy}/adapter_model.safetensors")
            for place in checkpoints
        )
        assert any(not first[key].equal(second[key]) for key in first), policy
    bases = [
        path.read_bytes()
        for place in checkpoints
        for path in place.glob("bases/*/model.safetensors")
    ]
    assert len(bases) == 2 and bases[0] == bases[1]
    assert not [*run.glob("checkpoints/*/policies/*/model.safetensors")]


def test_both_sides_of_the_comparison_play_the_same_games() -> None:
    apart, together = (
        compose.load(shipped(words)) for words in ("population=adapters", "'policy.lora=")
    )
    assert {key for key in apart if apart[key] != together[key]} == {"policy", "population"}
    assert apart["policy"]["lora"] == {"targets": None, **together["policy"]["lora"]}
