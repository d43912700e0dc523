"""Tests of the config group of opponents: names, and the experiments that they fit."""

import re
from pathlib import Path

import pytest

from selfplay.config import compose
from selfplay.config.shipped_configs import package_of
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


def test_the_package_of_each_shipped_group_is_known() -> None:
    assert {package_of(group) for group in ("experiment", "recipe", "algorithm")} == {"_global_"}
    assert package_of("opponents") == "population.opponents" and package_of("credit") == ""


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="cfr"):
        compose.load(["+experiment=tiny/kuhn", "+opponents=cfrs"])
    with pytest.raises(ConfigError, match=r"\+opponents"):
        compose.load(["+experiment=tiny/kuhn", "opponents=cfr"])


@pytest.mark.parametrize(
    ("typed", "package"),
    [
        ("+opponents=mine", "population.opponents"),
        ("+recipe=mine", "_global_"),
        ("algorithm=mine", "_global_"),
    ],
)
def test_a_file_without_its_package_is_named(tmp_path: Path, typed: str, package: str) -> None:
    group = typed.lstrip("+").partition("=")[0]
    file = tmp_path / group / "mine.yaml"
    file.parent.mkdir()
    file.write_text("learner: {lr: 0.1}\n")
    choices = ["+experiment=tiny/kuhn", typed]
    named = rf"file {group}/mine.yaml must begin with the line '# @package {package}'"
    line = rf"^{re.escape(typed)}: its {named}$"
    with pytest.raises(ConfigError, match=line):
        compose.load(choices, search=[str(tmp_path)])
