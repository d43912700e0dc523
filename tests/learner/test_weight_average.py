"""Tests of the mean of weights: it is a run that plays, and its source does not change."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from selfplay.errors import RunError
from selfplay.learner import checkpoint
from selfplay.learner.weight_average import average
from tests.helpers.command_process import SMOKE, one_line, run

THREE = ("run.steps=3", "run.checkpoint_every=1", "run.keep_checkpoints=9")
ADAPTER = "policy.lora={rank: 2}"


def trained(tmp_path: Path, *more: str) -> Path:
    """Train a small run that keeps its checkpoints of steps 0 to 3."""
    outcome = run("train", SMOKE, *THREE, "learner.lr=0.01", "run.name=whole", *more, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    return tmp_path / "runs" / "whole"


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the trained tensors of the only policy at a step."""
    (file,) = (run / f"checkpoints/{step:06d}/policies/base").glob("*.safetensors")
    return load_file(file)


@pytest.mark.parametrize("more", [(), (ADAPTER,)], ids=["all weights", "adapter"])
def test_the_mean_of_weights_plays_without_its_source(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    source = trained(tmp_path, *more)
    before = hashes(source)
    made = run("average", "runs/whole", "--steps", "2:", cwd=tmp_path)
    assert made.code == 0, made.err
    assert made.out == "runs/whole_mean: mean of the weights of steps 2, 3\n"
    assert hashes(source) == before
    mean = tmp_path / "runs" / "whole_mean"
    found, second, third = weights(mean, 3), weights(source, 2), weights(source, 3)
    assert found.keys() == third.keys()
    assert any(not torch.equal(second[name], third[name]) for name in third)
    for name, tensor in found.items():
        expected = (second[name].double() + third[name].double()) / 2
        assert tensor.dtype == third[name].dtype
        assert torch.equal(tensor, expected.to(tensor.dtype)), name
    record = json.loads((mean / "average.json").read_text())
    assert record == {"run": str(source.resolve()), "steps": [2, 3]}
    shutil.rmtree(source)
    assert checkpoint.broken(mean / "checkpoints/000003") is None
    played = run("evaluate", "runs/whole_mean", cwd=tmp_path)
    assert played.code == 0, played.err
    refused = run("train", "resume=runs/whole_mean", cwd=tmp_path)
    assert refused.code == 2
    assert "has no state of optimizers" in one_line(refused.err)
    if more:
        place = mean / "checkpoints/000003"
        config = json.loads((place / "policies/base/adapter_config.json").read_text())
        assert Path(config["base_model_name_or_path"]).parent == (place / "bases").absolute()


@pytest.mark.parametrize(("source", "here"), [(".", "whole"), ("..", "whole/checkpoints")])
def test_the_mean_is_next_to_a_run_that_is_named_by_dots(
    tmp_path: Path, source: str, here: str
) -> None:
    (tmp_path / "whole/checkpoints").mkdir(parents=True)
    (tmp_path / "whole/config.yaml").write_text("{}")
    (tmp_path / "whole_mean").mkdir()
    refused = run("average", source, cwd=tmp_path / here)
    assert refused.code == 2
    assert f"{tmp_path.resolve() / 'whole_mean'} exists" in one_line(refused.err)


def test_a_run_with_custom_code_is_averaged_by_the_suggested_command(
    tmp_path: Path,
) -> None:
    source = trained(tmp_path)
    (tmp_path / "my_games").mkdir()
    (tmp_path / "my_games/credit.py").write_text(
        "from selfplay.credit.trr import TRR\n\n\nclass Mine(TRR):\n    pass\n"
    )
    config = (source / "config.yaml").read_text()
    shipped = "_target_: selfplay.credit.trr.TRR"
    assert shipped in config
    (source / "config.yaml").write_text(config.replace(shipped, "_target_: my_games.credit.Mine"))
    words = ("average", "runs/whole", "--steps", "2:")
    refused = run(*words, cwd=tmp_path)
    line = one_line(refused.err)
    assert refused.code == 2
    assert line.endswith(
        "to allow it, type: selfplay average runs/whole --steps 2: --trust my_games"
    )
    made = run(*words, "--trust", "my_games", cwd=tmp_path)
    assert made.code == 0, made.err
    assert "my_games.credit.Mine" in (tmp_path / "runs/whole_mean/config.yaml").read_text()


def test_equal_weights_stay_bit_for_bit(tmp_path: Path) -> None:
    source = trained(tmp_path)
    tensors = {"a": torch.rand(50), "b": torch.rand(50).bfloat16(), "n": torch.arange(5)}
    for step in (1, 2, 3):
        rewrite(source, step, tensors)
    assert average(source, tmp_path / "mean") == [1, 2, 3]
    assert all(torch.equal(weights(tmp_path / "mean", 3)[name], t) for name, t in tensors.items())


def rewrite(source: Path, step: int, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the weights of a checkpoint, and their hash in its manifest."""
    place = source / f"checkpoints/{step:06d}"
    file = place / "policies/base/model.safetensors"
    save_file(tensors, file)
    manifest = json.loads((place / checkpoint.MANIFEST).read_text())
    manifest[str(file.relative_to(place))] = hashlib.sha256(file.read_bytes()).hexdigest()
    (place / checkpoint.MANIFEST).write_text(json.dumps(manifest))


def test_weights_without_a_mean_are_refused_and_no_folder_is_left(tmp_path: Path) -> None:
    source, mean = trained(tmp_path), tmp_path / "mean"
    with pytest.raises(RunError, match=r"two .* 1 of those .* \(steps 0, 1, 2, 3\) lie between"):
        average(source, mean, first=3)
    rewrite(source, 2, {"a": torch.rand(3)})
    with pytest.raises(RunError, match="its tensors are not those of"):
        average(source, mean)
    (source / "checkpoints/000002/policies/base/model.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"000002: .*is damaged; choose steps without it"):
        average(source, mean)
    assert not mean.exists()
    mean.mkdir()
    with pytest.raises(RunError, match="exists and is not overwritten; choose another folder"):
        average(source, mean, first=0, last=1)
