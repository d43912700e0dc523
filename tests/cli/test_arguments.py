"""Tests of the config that a command's flags and arguments choose."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from selfplay.cli.arguments import load
from selfplay.config import compose


def loaded(folder: Path, *overrides: str) -> dict[str, Any]:
    options = argparse.Namespace(config_path=folder, config_dir=[])
    return load(options, overrides)


def test_the_config_of_a_run_takes_choices_of_groups(tmp_path: Path) -> None:
    own = compose.load(["+experiment=tiny/kuhn", "run.steps=7"])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(own))
    assert loaded(tmp_path) == own
    changed = loaded(tmp_path, "warmstart=none", "credit=rae", "seed=3")
    assert own["warmstart"] and own["credit"]["_target_"] != "selfplay.credit.rae.RAE"
    assert not changed["warmstart"]
    assert changed["credit"]["_target_"] == "selfplay.credit.rae.RAE"
    assert (changed["seed"], changed["run"]["steps"]) == (3, 7)
    assert changed["arena"] == own["arena"]
