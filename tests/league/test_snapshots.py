"""Tests of snapshots with weights: in the engine, in checkpoints, and removed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError
from selfplay.league import Snapshot
from selfplay.league.snapshots import Snapshots
from selfplay.learner import checkpoint
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.models.policy import Bases, Policy, load_model, load_policy
from selfplay.models.policy_settings import Lora
from selfplay.role import Role
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.types import Request
from tests.helpers.builders import same, save_tiny, weights

SIZES = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 48}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), **SIZES)


class Made:
    """Snapshots of two players in an engine."""

    def __init__(self, folder: Path, *, lora: Lora | None = None, again: Sequence[str] = ()):
        bases: Bases = {}
        self.policies: dict[str, Policy] = {
            name: load_policy(
                name, model=str(folder), device="cpu", lora=lora, bases=bases, seed=seed
            )
            for seed, name in enumerate(("base", "hunter"))
        }
        for base in bases.values():
            base.kept = "float32"
        self.engine = TransformersEngine()
        for name, policy in self.policies.items():
            self.engine.serve(name, policy.model, policy.renderer.end_ids)
        self.seating = PolicyPool(
            roles={"player": Role()},
            policy_of=lambda role: "base",
            sampling={"player": SamplingSettings()},
            rollout=RolloutSettings(),
        )
        self.snapshots = Snapshots(self.policies, self.seating, self.engine, begin_again=again)

    def output(self, policy: str) -> Any:
        """Return six sampled tokens, their log-probabilities, and the policy's version."""
        asked = Request(id=0, policy=policy, prompt_ids=(3, 4, 5), seed=1, max_tokens=6)
        self.engine.add(asked)
        while True:
            for done in self.engine.step():
                return done.completion_ids, done.logprobs, done.version

    def learn(self, policy: str) -> None:
        """Change the weights in place."""
        with torch.no_grad():
            for parameter in self.policies[policy].model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape) * 0.3)
        self.policies[policy].version += 1

    def save(self, place: Path, step: int, *, keep: int = 2) -> Path:
        written = CheckpointWriter(place).save(
            step=step,
            policies=self.policies,
            learners={},
            state={},
            keep=keep,
            frozen=self.snapshots.frozen(),
        )
        self.snapshots.written(written)
        return written


BOTH = pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])


@BOTH
def test_a_snapshot_stays_as_the_player_was(folder: Path, lora: Lora | None) -> None:
    made = Made(folder, lora=lora)
    made.learn("base")
    before = made.output("base")[:2]
    made.snapshots.add(Snapshot(player="base", updates=1))
    made.learn("base")
    assert made.output("base")[:2] != before
    assert made.output("base@1") == (*before, 1)
    assert "base@1" in made.seating.engines and "base@1" not in made.seating.learning
    made.snapshots.remove("base@1")
    assert "base@1" not in made.seating.engines
    with pytest.raises(ConfigError, match="serves no policy 'base@1'"):
        made.output("base@1")


def test_a_snapshot_of_an_adapter_is_an_adapter(folder: Path) -> None:
    made = Made(folder, lora=Lora(rank=2))
    made.snapshots.add(Snapshot(player="base", updates=0))
    base = made.policies["base"].base
    assert base is not None
    held = {id(parameter) for parameter in base.model.parameters()}
    own = [
        name
        for name, parameter in made.snapshots.frozen()["base@0"].policy.model.named_parameters()
        if id(parameter) not in held
    ]
    assert own and all("lora_" in name for name in own)


@BOTH
def test_snapshots_are_restored_from_a_checkpoint(
    folder: Path, lora: Lora | None, tmp_path: Path
) -> None:
    made = Made(folder, lora=lora, again=["hunter"])
    start = weights(made.policies["hunter"].model)
    listed = []
    for updates in range(3):
        for player in ("base", "hunter"):
            listed.append(Snapshot(player=player, updates=updates))
            made.snapshots.add(listed[-1])
            made.learn(player)
    outputs = {each.name: made.output(each.name) for each in listed}
    place = made.save(tmp_path, 3)
    again = Made(folder, lora=lora, again=["hunter"])
    again.snapshots.add(Snapshot(player="base", updates=7))
    for name, policy in again.policies.items():
        policy.load_weights(place / "policies" / name)
    again.snapshots.load(place, listed)
    assert {each.name: again.output(each.name) for each in listed} == outputs
    assert "base@7" not in again.seating.engines, "not in the checkpoint"
    assert not same(start, weights(again.policies["hunter"].model))
    again.snapshots.begin_again("hunter")
    assert same(start, weights(again.policies["hunter"].model))
    assert again.output("hunter")[:2] == outputs["hunter@0"][:2], "the engine has them too"


@BOTH
def test_each_folder_loads_by_itself(folder: Path, lora: Lora | None, tmp_path: Path) -> None:
    made = Made(folder, lora=lora)
    made.learn("base")
    made.snapshots.add(Snapshot(player="base", updates=1))
    for step in (1, 2):
        place = made.save(tmp_path / "checkpoints", step, keep=1)
    loaded = load_model(str(place / "snapshots/base@1"), where="test", dtype="float32")
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(ids).logits, made.policies["base"].model(ids).logits, rtol=1e-4, atol=1e-5
        )


def test_full_weights_are_stored_once_until_their_last_checkpoint_goes(
    folder: Path, tmp_path: Path
) -> None:
    made = Made(folder)
    made.snapshots.add(Snapshot(player="base", updates=0))
    first = made.save(tmp_path, 1) / "snapshots/base@0/model.safetensors"
    made.learn("base")
    made.snapshots.add(Snapshot(player="base", updates=1))
    second = made.save(tmp_path, 2)
    assert first.samefile(second / "snapshots/base@0/model.safetensors")
    assert checkpoint.broken(second) is None
    made.snapshots.remove("base@0")
    third = made.save(tmp_path, 3)
    assert sorted(path.name for path in (third / "snapshots").iterdir()) == ["base@1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000003"]
    assert (second / "snapshots/base@0/model.safetensors").stat().st_nlink == 1
    made.save(tmp_path, 4)
    assert not [*tmp_path.glob("*/snapshots/base@0")]


def test_the_base_of_adapters_is_linked_from_the_newest_intact_file(
    folder: Path, tmp_path: Path
) -> None:
    made = Made(folder, lora=Lora(rank=2))
    name = "bases/float32/model.safetensors"
    first, second = (made.save(tmp_path, step, keep=9) for step in (1, 2))
    assert (first / name).samefile(second / name)
    assert checkpoint.broken(second) is None
    whole = (first / name).read_bytes()
    (second / name).unlink()
    (second / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    third = made.save(tmp_path, 3, keep=9)
    assert (first / name).samefile(third / name)
    (first / name).write_bytes(whole[:-1])
    fourth = made.save(tmp_path, 4, keep=9)
    assert not (first / name).samefile(fourth / name), "both earlier ones are damaged"
    assert (fourth / name).read_bytes() == whole
    assert checkpoint.broken(fourth) is None
    assert checkpoint.broken(third) == f"{name} is damaged"


def test_a_file_is_copied_if_links_are_impossible(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(folder)
    made.snapshots.add(Snapshot(player="base", updates=0))
    first = made.save(tmp_path, 1)

    def refuse(*paths: object) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr("selfplay.learner.checkpoint_content.os.link", refuse)
    second = made.save(tmp_path, 2)
    names = "snapshots/base@0/model.safetensors"
    assert not (first / names).samefile(second / names)
    assert (first / names).read_bytes() == (second / names).read_bytes()
    assert checkpoint.broken(second) is None


def test_a_snapshot_name_used_again_after_a_return_is_written_again(
    folder: Path, tmp_path: Path
) -> None:
    """Check a return to a checkpoint; later checkpoints have other weights of the same name."""
    made = Made(folder)
    first = made.save(tmp_path, 1, keep=9)
    made.learn("base")
    made.snapshots.add(Snapshot(player="base", updates=1))
    later = made.save(tmp_path, 2, keep=9) / "snapshots/base@1/model.safetensors"
    old = later.read_bytes()
    made.policies["base"].load_weights(first / "policies/base")
    made.snapshots.load(first, [])
    made.learn("base")
    made.snapshots.add(Snapshot(player="base", updates=1))
    made.save(tmp_path, 2, keep=9)
    assert later.read_bytes() != old


def test_snapshots_at_rest_keep_no_cache_and_the_same_output(folder: Path) -> None:
    made = Made(folder)
    made.snapshots.add(Snapshot(player="base", updates=0))
    outputs = made.output("base@0")
    cache = made.engine._batches["base@0"].cache
    assert cache.slots
    made.snapshots.rest()
    assert not made.engine._batches["base@0"].cache.slots
    assert made.output("base@0") == outputs


def test_a_policy_with_requests_in_progress_is_not_withdrawn(folder: Path) -> None:
    made = Made(folder)
    made.engine.add(Request(id=0, policy="base", prompt_ids=(3,), seed=0, max_tokens=2))
    with pytest.raises(RuntimeError, match="cannot be released or withdrawn"):
        made.engine.withdraw("base")
