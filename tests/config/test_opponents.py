"""Tests of the config group of opponents: names, and the experiments that they fit."""

from pathlib import Path

import pytest

from selfplay.config import compose
from selfplay.errors import ConfigError
from selfplay.models.population import Population


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        (["+experiment=tiny/kuhn", "+opponents=cfr"], ["cfr"]),
        (["+experiment=tiny/leduc", "+opponents=[cfr,random]"], ["cfr", "random"]),
        (["arena=openspiel", "roles=pettingzoo", "+opponents=mcts"], ["mcts_100", "mcts_1000"]),
        (["+opponents=cfr", "+experiment=tiny/tic_tac_toe"], None),
        (["+experiment=tiny/kuhn", "population=separate", "+opponents=random"], ["random"]),
    ],
)
def test_opponents_are_chosen_by_name(choices: list[str], names: list[str] | None) -> None:
    config = compose.load(choices)
    if names is None:
        with pytest.raises(ConfigError, match="CFR: OpenSpiel cannot solve tic_tac_toe_v0"):
            Population.of(config)
    else:
        assert sorted(Population.of(config).opponents) == names


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="cfr"):
        compose.load(["+experiment=tiny/kuhn", "+opponents=cfrs"])
    with pytest.raises(ConfigError, match=r"\+opponents"):
        compose.load(["+experiment=tiny/kuhn", "opponents=cfr"])


@pytest.mark.parametrize(
    ("group", "package"), [("opponents", "population.opponents"), ("recipe", "_global_")]
)
def test_a_file_without_its_package_is_named(tmp_path: Path, group: str, package: str) -> None:
    file = tmp_path / group / "mine.yaml"
    file.parent.mkdir()
    file.write_text("learner: {lr: 0.1}\n")
    choices = ["+experiment=tiny/kuhn", f"+{group}=mine"]
    line = rf"\+{group}=mine: .*file {group}/mine.yaml must be '# @package {package}'; add"
    with pytest.raises(ConfigError, match=line):
        compose.load(choices, search=[str(tmp_path)])
