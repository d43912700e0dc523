"""Tests of the planned size of checkpoints, compared with checkpoints that are written."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.learner.learner import Learner
from selfplay.learner.objective import PolicyLoss
from selfplay.models import lora
from selfplay.models.policy import Base, Policy
from selfplay.models.policy_settings import Lora
from selfplay.plan.checkpoint_size import KeptCheckpoints, plan_disk
from selfplay.plan.memory import Member
from selfplay.plan.model_shape import of_config
from tests.helpers.builders import llama, sample

RENDERER: Any = SimpleNamespace(save_tokenizer=lambda place: {}, tokenizer_files={})
SIZES = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 2048}
"""Sizes of a model of 1.7 million parameters; the headers of its files are small."""


def written(place: Path, policies: dict[str, Policy], *, average: bool = False) -> int:
    """Save a checkpoint after one update of each learning policy, and return its bytes."""
    learners = {}
    for name, policy in policies.items():
        if not policy.learn:
            continue
        objective = PolicyLoss(kl=0.1, reference="ema", ema_rate=0.5) if average else PolicyLoss()
        if average:
            policy.freeze_reference(moves=True)
        learners[name] = Learner(policy.model, objective=objective, reference=policy.reference)
        learners[name].update([sample((1, 2), (3, 4), 1.0)], step=1)
    made = CheckpointWriter(place).save(
        step=1, policies=policies, learners=learners, state={}, keep=1
    )
    return sum(path.stat().st_size for path in made.rglob("*") if path.is_file())


@pytest.mark.parametrize(("average", "width"), [(False, 12), (True, 16)])
def test_a_checkpoint_has_weights_and_moments_in_float32(
    tmp_path: Path, average: bool, width: int
) -> None:
    model = llama(**SIZES)
    shape = of_config(model.config, where="test")
    other = llama(1, **SIZES).requires_grad_(False)
    policies = {
        "base": Policy(name="base", model=model, renderer=RENDERER),
        "judge": Policy(name="judge", model=other, renderer=RENDERER, learn=False),
    }
    members = {
        "base": Member(outline=shape, reference=average, average=average, frozen_bytes=4),
        "judge": Member(outline=shape, learns=False, frozen_bytes=4),
    }
    found = plan_disk(members, ["judge"], KeptCheckpoints(kept=2, most=3))
    assert found.checkpoint == (width + 4) * shape.parameters
    assert found.total == 3 * found.checkpoint
    size = written(tmp_path, policies, average=average)
    assert size == pytest.approx(found.checkpoint, rel=0.01)
    # A saved model that is an opponent is not in the checkpoint.
    alone = plan_disk(members, [], KeptCheckpoints(kept=2, most=3))
    assert alone.checkpoint == width * shape.parameters


@pytest.mark.parametrize(("kept", "model"), [("float32", ""), (None, "somewhere")])
def test_a_checkpoint_has_adapters_and_a_base_without_another_source(
    tmp_path: Path, kept: str | None, model: str
) -> None:
    pytest.importorskip("peft")
    bare = llama(**SIZES).requires_grad_(False)
    shape = of_config(bare.config, where="test")
    base = Base(model=bare, renderer=RENDERER, source="somewhere", kept=kept)
    policies = {
        name: Policy(
            name=name,
            model=lora.adapted(bare, Lora(rank=32), seed=0, where="test"),
            renderer=RENDERER,
            base=base,
        )
        for name in ("a", "b")
    }
    outline = replace(shape, model=model)
    members = dict.fromkeys(policies, Member(outline=outline, rank=32, frozen_bytes=4))
    found = plan_disk(members, [], KeptCheckpoints(kept=2, most=3))
    own, once = 2 * 12 * shape.adapter(32), 0 if model else 4 * shape.parameters
    assert found.checkpoint == own + once
    assert found.total == 3 * own + once, "later checkpoints link to the base"
    assert written(tmp_path, policies) == pytest.approx(found.checkpoint, rel=0.04)


@pytest.mark.parametrize(
    ("steps", "every", "keep", "kept", "most"),
    [
        (100, 10, 2, 2, 3),
        (100, 50, 2, 2, 3),  # of steps 0, 50 and 100
        (100, 100, 2, 2, 2),  # of steps 0 and 100
        (7, 5, 1000, 3, 3),  # of steps 0, 5 and 7
        (0, 10, 1000, 1, 1),
    ],
)
def test_checkpoints_that_are_on_the_disk_at_once(
    steps: int, every: int, keep: int, kept: int, most: int
) -> None:
    keys = {"steps": steps, "checkpoint_every": every, "keep_checkpoints": keep}
    config = compose.load(["+experiment=tiny/kuhn", *(f"run.{k}={v}" for k, v in keys.items())])
    found = KeptCheckpoints.of(config)
    assert (found.kept, found.most, found.background) == (kept, most, False)
    config["run"]["async_checkpoints"] = True
    assert KeptCheckpoints.of(config).background


def test_the_command_prints_the_disk(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "+experiment=tiny/kuhn", "cluster=local", "run.keep_checkpoints=3"]
    assert main(asked) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "on the disk" in line]
    # 16 bytes of 19,488 parameters, 4 times
    assert "1.2 MB   checkpoints of 311.8 kB each: the 3 that are kept and the one being" in line
    assert main([*asked, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    (policy,) = made["policies"].values()
    disk = made["disk"]
    assert disk["checkpoint"] == (12 + 4) * policy["parameters"], (
        "its reference is a moving average"
    )
    assert (disk["total"], disk["most"]) == (4 * disk["checkpoint"], 4)
