"""Tests of a run with adapters that learn in turns, also if it is killed, moved and resumed."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from selfplay.experiment.experiment import Experiment
from selfplay.models.lora import CONFIG
from selfplay.run.directory import Run
from tests.helpers.command_process import (
    SMOKE,
    InjectedFault,
    contents,
    finished,
    metrics,
    one_line,
    run,
    summary,
)

TURNS = (
    SMOKE,
    "population=adapters",
    "policy.lora.rank=4",
    "population.phases=[{learn: [proposer], steps: 1}, {learn: [solver], steps: 1}]",
    "+population.overrides.solver.learner.lr=1e-2",
    "objective.kl=0.1",
    "objective.reference=ema",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted run, which no test changes."""
    finished()  # makes the warm start
    folder = tmp_path_factory.mktemp("turns")
    outcome = run("train", *TURNS, "run.name=whole", cwd=folder)
    assert outcome.code == 0, outcome.err
    return folder / "runs/whole"


def weights(place: Path, step: int, policy: str) -> bytes:
    folder = place / f"checkpoints/{step:06d}/policies/{policy}"
    return (folder / "adapter_model.safetensors").read_bytes()


def written(place: Path) -> dict[str, bytes]:
    """Return the files of a run, except the adapter configs with absolute paths to the base."""
    return {name: text for name, text in contents(place).items() if not name.endswith(CONFIG)}


def test_the_metrics_name_the_learning_policy_and_only_it_changes(whole: Path) -> None:
    lines = metrics(whole)[1:]
    assert [line["policy/proposer/learned"] for line in lines] == [1, 0, 1]
    assert [line["policy/solver/learned"] for line in lines] == [0, 1, 0]
    assert ["policy/solver/loss" in line for line in lines] == [False, True, False]
    assert lines[1]["policy/solver/lr"] == 1e-2 and lines[0]["policy/proposer/lr"] == 1e-3
    assert weights(whole, 1, "proposer") == weights(whole, 2, "proposer")
    assert weights(whole, 2, "proposer") != weights(whole, 3, "proposer")
    assert weights(whole, 1, "solver") != weights(whole, 2, "solver") == weights(whole, 3, "solver")
    versions = summary(whole)["totals"]["policy_versions"]
    assert versions == {"proposer": 2, "solver": 1}


def test_the_engine_samples_with_the_weights_that_learn(whole: Path) -> None:
    learned = {"proposer": 0, "solver": 0}
    for line in metrics(whole)[1:]:
        for name in learned:
            if line[f"policy/{name}/learned"]:
                assert abs(line[f"policy/{name}/policy_kl"]) < 1e-6
                learned[name] += 1
    assert learned["proposer"] > 1, "at its second update, the adapter is not zero"


def test_the_base_is_on_the_disk_once_and_never_changes(whole: Path) -> None:
    bases = [*whole.glob("checkpoints/*/bases/*/model.safetensors")]
    assert len(bases) == 3 and len({path.stat().st_ino for path in bases}) == 1
    assert not [*whole.glob("checkpoints/*/policies/*/model.safetensors")]


def test_a_policy_folder_loads_into_transformers_as_it_is(whole: Path) -> None:
    place = whole / "checkpoints/000003/policies/solver"
    model = AutoModelForCausalLM.from_pretrained(place)
    B = [tensor for name, tensor in model.named_parameters() if "lora_B" in name]
    assert B and all(bool(tensor.any()) for tensor in B), "the learned weights are loaded"


@pytest.mark.parametrize(
    "injected",
    [
        InjectedFault(at="selfplay.models.policy.Policy.save", call=6),
        InjectedFault(at="selfplay.learner.learner.Learner.update", call=3),
    ],
    ids=["within a checkpoint", "before an update"],
)
def test_a_killed_and_moved_run_resumes_equally_without_its_cache(
    injected: InjectedFault, whole: Path, tmp_path: Path
) -> None:
    killed = run("train", *TURNS, "run.name=struck", cwd=tmp_path, injected=injected)
    assert killed.code == -signal.SIGKILL
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "runs", moved)
    outcome = run("train", "resume=struck", cwd=moved, cache=tmp_path / "empty")
    assert outcome.code == 0, outcome.err
    assert not (tmp_path / "empty").exists(), "the base was made again"
    for line, expected in zip(metrics(moved / "struck"), metrics(whole), strict=True):
        assert line == expected
    assert summary(moved / "struck") == summary(whole)
    assert written(moved / "struck") == written(whole)


def test_the_ema_is_restored_with_the_adapter(whole: Path) -> None:
    place = whole / "checkpoints/000003"
    experiment = Experiment(Run.open(whole).config()).load(place)
    try:
        for name, policy in experiment.policies.items():
            assert policy.reference is not None
            saved = torch.load(place / "learners.pt", weights_only=True)[name]["ema"]
            mine = dict(policy.reference.named_parameters())
            assert saved and all("lora_" in key for key in saved)
            assert all(torch.equal(mine[key], saved[key]) for key in saved)
    finally:
        experiment.close()


def test_another_rank_is_refused_in_one_line(whole: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "runs/other"))
    path = place / "config.yaml"
    path.write_text(path.read_text().replace("rank: 4", "rank: 8"))
    outcome = run("train", "resume=runs/other", cwd=tmp_path)
    assert outcome.code == 2
    assert "the adapter in" in one_line(outcome.err) and "policy.lora" in outcome.err
