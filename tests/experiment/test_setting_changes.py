"""Tests of changed settings of a resumed run: refused, or made, printed and recorded."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.config import compose
from selfplay.errors import ConfigError
from selfplay.experiment.setting_changes import changes, check_changes
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.run.files import sha256
from selfplay.run.sessions import read_sessions
from tests.helpers.builders import llama, sample
from tests.helpers.command_process import copy_of_finished, metrics, one_line, run
from tests.helpers.repository import ROOT

CONFIG: Mapping[str, Any] = {
    "seed": 0,
    "run": {"steps": 10, "name": "a", "minimum": {}},
    "learner": {"lr": 1e-3, "betas": [0.9, 0.999]},
    "objective": {"kl": 0.0, "reference": "ema", "ratio": "token"},
    "population": {"overrides": {"judge": {"learner": {"lr": 1e-3}, "learn": True}}},
    "evaluations": {"held_out": {"every": 5, "samples": 2}},
    "engine": {"max_rows": 4},
}


def changed(**nodes: Any) -> dict[str, Any]:
    return {**CONFIG, **{key: {**CONFIG[key], **node} for key, node in nodes.items()}}


def refusal(config: Mapping[str, Any], step: int | None = 8) -> str:
    with pytest.raises(ConfigError) as caught:
        check_changes(changes(CONFIG, config), config, run=Path("runs/a"), step=step)
    return str(caught.value)


def test_settings_without_a_state_may_change() -> None:
    learner = {"learner": {"lr": 1e-4}, "learn": True}
    config = changed(
        run={"steps": 20, "minimum": {"role/a/valid": 0.5}},
        learner={"lr": 1e-4, "betas": [0.9, 0.99]},
        population={"overrides": {"judge": learner}},
        evaluations={"held_out": {"every": 1, "samples": 2}},
        engine={"max_rows": 8},
    )
    found = changes(CONFIG, config)
    check_changes(found, config, run=Path("runs/a"), step=8)
    assert [str(each) for each in found] == [
        "run.steps=20 (was 10)",
        "learner.lr=0.0001 (was 0.001)",
        "learner.betas=[0.9, 0.99] (was [0.9, 0.999])",
        "population.overrides.judge.learner.lr=0.0001 (was 0.001)",
        "evaluations.held_out.every=1 (was 5)",
        "run.minimum.role/a/valid=0.5 (was None)",
    ]


def test_another_teacher_is_one_change_for_each_role() -> None:
    """The new value may be a mapping where the old one was a name."""
    one = {"policy": {"teacher": "a"}, "overrides": {"judge": {"teacher": "b"}}}
    two = {"policy": {"teacher": {"x": "c", "y": "d"}}, "overrides": {"judge": {"teacher": "e"}}}
    before, after = changed(population=one), changed(population=two)
    found = changes(before, after)
    check_changes(found, after, run=Path("runs/a"), step=8)
    assert sorted(map(str, found)) == [
        "population.overrides.judge.teacher=e (was b)",
        "population.policy.teacher.x=c (was None)",
        "population.policy.teacher.y=d (was None)",
    ]


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        ({"run": {"name": "b"}}, "run.name: cannot change in a resumed run, because it is part of"),
        ({"objective": {"ratio": "none"}}, "objective.ratio: cannot change"),
        ({"objective": {"reference": "initial"}}, "objective.reference: cannot change"),
        ({"population": {"overrides": {}}}, "population.overrides.judge.learn: cannot change"),
        ({"evaluations": {"held_out": {"every": 5, "samples": 4}}}, "held_out.samples: cannot"),
        ({"run": {"steps": 8}}, "run.steps: 8 does not fit: runs/a goes on from step 8; set more"),
        (
            {"objective": {"kl": 0.1}},
            "objective.kl: 0.1 does not fit: the checkpoint has no",
        ),
    ],
)
def test_other_settings_are_refused_in_one_line(nodes: dict[str, Any], line: str) -> None:
    message = refusal(changed(**nodes))
    assert line in message and "\n" not in message
    assert "selfplay train --config-path runs/a run.name=NEW" in message or "set more" in message


def test_a_credit_method_is_refused_because_of_its_state() -> None:
    why = "because the credit method may keep state in the checkpoint (running averages, a critic)"
    assert why in refusal({**CONFIG, "credit": {"decay": 0.9}})


def test_the_schedule_of_a_weight_is_one_setting() -> None:
    falling = {"steps": [0, 90], "values": [0.3, 0.0], "between": "constant"}
    rising = {"steps": [0, 90], "values": [0.0, 0.3]}

    def described(before: Any, after: Any) -> list[str]:
        old, new = changed(objective={"kl": before}), changed(objective={"kl": after})
        found = changes(old, new)
        check_changes(found, new, run=Path("runs/a"), step=8)
        return [str(each) for each in found]

    shown = "objective.kl={steps: [0, 90], values: [0.0, 0.3]}"
    assert described(0.3, rising) == [f"{shown} (was 0.3)"]
    assert described(rising, 0.3) == ["objective.kl=0.3 (was {steps: [0, 90], values: [0.0, 0.3]})"]
    assert described(falling, rising) == [
        f"{shown} (was {{steps: [0, 90], values: [0.3, 0.0], between: constant}})"
    ]
    command = re.escape(f"run.name=NEW '{shown}'")
    for never in (0.0, {"steps": [0, 90], "values": [0, 0.0]}):
        with pytest.raises(ConfigError, match=f"the checkpoint has no moving average.*{command}"):
            described(never, rising)


def test_the_new_name_of_a_class_is_refused_with_how_to_keep_the_old_one() -> None:
    before, after = ({"credit": {"_target_": f"my_games.own.{name}"}} for name in ("A", "B"))
    words = r"^credit\._target_: cannot change .*, keep the old name in its module: A = B\)"
    with pytest.raises(ConfigError, match=words):
        check_changes(changes(before, after), after, run=Path("runs/a"), step=8)
    assert "old name" not in refusal({**CONFIG, "seed": 1})


def test_a_seed_is_refused_and_the_page_of_the_other_keys_is_named() -> None:
    message = refusal({**CONFIG, "seed": 1})
    assert message.startswith("seed: cannot change in a resumed run, because all tasks and samples")
    assert '"Resume with other settings" in docs/quickstart.md' in message
    assert "## Resume with other settings" in (ROOT / "docs/quickstart.md").read_text()


def test_the_command_of_a_refusal_has_the_words_of_the_user() -> None:
    before = {**CONFIG, "sampler": {"_target_": "a.Group", "size": 4}}
    after = {**CONFIG, "sampler": {"_target_": "a.Dynamic", "size": 4}}
    words = ["sampler=dynamic", "run.name=it's"]
    with pytest.raises(ConfigError) as caught:
        check_changes(changes(before, after), after, run=Path("runs/a"), step=8, overrides=words)
    command = "selfplay train --config-path runs/a run.name=NEW sampler=dynamic"
    assert command in str(caught.value) and "only renamed" not in str(caught.value)


def test_a_run_that_begins_again_may_have_any_number_of_steps() -> None:
    config = changed(run={"steps": 1}, objective={"kl": 0.1})
    check_changes(changes(CONFIG, config), config, run=Path("runs/a"), step=None)


def test_a_loaded_optimizer_keeps_the_settings_of_its_learner() -> None:
    def learner(settings: LearnerSettings) -> Learner:
        objective = PolicyLoss(ratio="none", clip="none", aggregate="token_mean")
        return Learner(llama(), objective=objective, settings=settings)

    before = learner(LearnerSettings(lr=1e-2))
    before.update([sample([1, 2], [3, 4], 1.0)], step=1)
    changed = LearnerSettings(lr=1e-3, betas=(0.5, 0.6), weight_decay=0.1, warmup_steps=4)
    after = learner(changed)
    after.load_state_dict(before.state_dict())
    (group,) = after.optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.5, 0.6), 0.1)
    assert group["params"] == after.parameters
    for old, new in zip(before.parameters, after.parameters, strict=True):
        kept, loaded = before.optimizer.state[old], after.optimizer.state[new]
        assert torch.equal(kept["exp_avg"], loaded["exp_avg"])
    values = after.update([sample([1, 2], [3, 4], 1.0)], step=2)
    assert values["lr"] == 1e-3 * 2 / 4  # the second optimizer step of a warm-up of four


def test_a_finished_run_goes_on_with_more_steps_and_another_rate(tmp_path: Path) -> None:
    place = copy_of_finished(tmp_path)
    made = (place / "config.yaml").stat().st_mtime_ns
    refused = run("train", "resume=runs/copy", "seed=1", cwd=tmp_path)
    assert refused.code == 2 and "seed: cannot change" in one_line(refused.err)
    outcome = run("train", "resume=runs/copy", "run.steps=4", "learner.lr=1e-4", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "copy: continues after the checkpoint of step 3\n" in outcome.out
    (line,) = [each for each in outcome.err.splitlines() if "from step 4 on" in each]
    assert "run.steps=4 (was 3)" in line and "learner.lr=0.0001 (was 0.001)" in line
    rates = {row["step"]: row.get("policy/base/lr") for row in metrics(place)}
    assert rates[3] == 1e-3 and rates[4] == 1e-4
    config = compose.load([], name="config", folder=place)
    assert (config["run"]["steps"], config["learner"]["lr"]) == (4, 1e-4)
    assert (place / "config.yaml").stat().st_mtime_ns == made
    session = read_sessions(place)[-1]
    assert session.step == 3
    assert session.settings == {"run.steps": (3, 4), "learner.lr": (1e-3, 1e-4)}
    assert json.loads((place / "summary.json").read_text())["steps"] == 4


def test_a_checkpoint_of_another_step_is_refused_and_the_config_stays(tmp_path: Path) -> None:
    place = copy_of_finished(tmp_path)
    before = (place / "config.yaml").read_bytes()
    saved = place / "checkpoints" / "000003"
    state, manifest = saved / "state.json", saved / "manifest.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "step": 1}))
    hashes = {**json.loads(manifest.read_text()), "state.json": sha256(state)}
    manifest.write_text(json.dumps(hashes))
    refused = run("train", "resume=runs/copy", "run.steps=4", cwd=tmp_path)
    assert refused.code == 2 and "state.json is of step 1" in one_line(refused.err)
    assert (place / "config.yaml").read_bytes() == before
    assert [row["step"] for row in metrics(place)][-1] == 3


@pytest.mark.parametrize("steps", [None, [1], "abc"])
def test_steps_that_are_no_number_are_left_to_the_check_of_settings(steps: Any) -> None:
    config = changed(run={"steps": steps})
    check_changes(changes(CONFIG, config), config, run=Path("runs/a"), step=8)
