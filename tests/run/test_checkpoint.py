"""Tests of checkpoints: each is complete or absent, and no run continues from a damaged one."""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfplay.errors import DivergedError, RunError
from selfplay.learner import Sharded, checkpoint
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.learner.learner import Learner
from selfplay.learner.objective import PolicyLoss
from selfplay.learner.value_model import TransformerCritic
from selfplay.models.lora import adapted
from selfplay.models.policy import Policy
from selfplay.models.policy_settings import Lora
from tests.helpers.builders import llama, sample
from tests.helpers.command_process import (
    CONTEXT,
    SMOKE,
    InjectedFault,
    assert_alike,
    copy_of_finished,
    finished,
    one_line,
    run,
)
from tests.helpers.held_ranks import HeldRanks


def cut(place: Path) -> None:
    path = place / "policies/base/model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def flip(place: Path) -> None:
    path = place / "learners.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_state(place: Path) -> None:
    (place / "state.json").unlink()


def lose_manifest(place: Path) -> None:
    (place / checkpoint.MANIFEST).unlink()


def cut_manifest(place: Path) -> None:
    path = place / checkpoint.MANIFEST
    path.write_bytes(path.read_bytes()[:-10])


def empty_manifest(place: Path) -> None:
    (place / checkpoint.MANIFEST).write_text("{}")


def nest_manifest(place: Path) -> None:
    (place / checkpoint.MANIFEST).write_text("[" * 100_000)


def add_to_manifest(place: Path, name: str) -> None:
    path = place / checkpoint.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), name: "0"}))


def name_too_long(place: Path) -> None:
    add_to_manifest(place, "x" * 300)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "policies/base/model.safetensors is damaged"),
    "flip": (flip, "learners.pt is damaged"),
    "lose_state": (lose_state, "state.json is missing"),
    "lose_manifest": (lose_manifest, "its manifest is missing or damaged"),
    "cut_manifest": (cut_manifest, "its manifest is missing or damaged"),
    "empty_manifest": (empty_manifest, "its manifest is damaged"),
    "nest_manifest": (nest_manifest, "its manifest is missing or damaged"),
    "name_too_long": (name_too_long, f"{'x' * 300} is missing"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the folder of a finished run that the test may damage."""
    return copy_of_finished(tmp_path)


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_newest_whole_checkpoint_is_taken_and_the_damaged_named(kind: str, place: Path) -> None:
    damage, fault = DAMAGE[kind]
    folder = place / "checkpoints"
    assert checkpoint.latest(folder) == (folder / "000003", [])
    damage(folder / "000003")
    assert checkpoint.latest(folder) == (folder / "000002", [f"000003: {fault}"])


def test_no_whole_checkpoint_is_an_error_that_names_them_all(place: Path) -> None:
    for path in (place / "checkpoints").iterdir():
        cut(path)
    with pytest.raises(RunError, match=r"000003: .* is damaged; 000002: .*; 000001: "):
        checkpoint.latest(place / "checkpoints")


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) == (None, [])
    with pytest.raises(RunError, match="has no checkpoint yet; continue it: train resume="):
        checkpoint.choose(tmp_path)


def test_evaluate_play_and_study_choose_the_same_checkpoint(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from selfplay.study.players import Reference

    cut(place / "checkpoints/000003")
    expected = place / "checkpoints/000002"
    note = "checkpoint 000003: policies/base/model.safetensors is damaged; using "
    assert Reference.parse(str(place)).place() == expected
    assert capsys.readouterr().err == f"{note}{expected}\n"
    for command in (["evaluate", str(place)], ["play", str(place)]):
        outcome = run(*command, cwd=place)
        assert note in outcome.err, outcome.err
    assert Reference.parse(f"{place}@1").place() == place / "checkpoints/000001"
    assert Reference.parse(f"{place}@start").place() is None


@pytest.mark.parametrize("name", ["000009", "9", "1000000", "\u00b2", "000010"])
def test_an_empty_folder_or_another_name_is_no_checkpoint(name: str, place: Path) -> None:
    stray = place / "checkpoints" / name
    stray.mkdir()
    if name == "9":
        (stray / "notes").touch()
    assert checkpoint.latest(place / "checkpoints") == (place / "checkpoints/000003", [])


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("999999", "1000000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").touch()
    assert [path.name for path in checkpoint.kept(tmp_path)] == ["1000000", "999999"]


def test_a_manifest_that_names_files_elsewhere_is_damaged(place: Path) -> None:
    damaged = place / "checkpoints/000003"
    add_to_manifest(damaged, "../../config.yaml")
    assert checkpoint.broken(damaged) == "its manifest names a file outside it"


def test_a_manifest_that_is_nested_too_deeply_has_no_hashes(place: Path) -> None:
    damaged = place / "checkpoints/000003"
    assert checkpoint.hashes_of(damaged, Path("policies"))
    nest_manifest(damaged)
    assert checkpoint.hashes_of(damaged, Path("policies")) == {}


def test_names_in_a_manifest_print_no_control_characters(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from selfplay.study.players import places

    add_to_manifest(place / "checkpoints/000003", "\x1b]0;owned\x07\x1b[31m\u202e\nfake line")
    assert checkpoint.choose(place).name == "000002"
    assert [path.name for path in places(place, every=True)][-1] == "000002"
    for line in capsys.readouterr().err.splitlines():
        assert line.isprintable() and line.startswith("checkpoint 000003: ?]0;owned??[31m? fake")


def test_resume_from_an_older_checkpoint_reports_it_and_ends_the_same(
    place: Path, tmp_path: Path
) -> None:
    cut(place / "checkpoints/000003")
    outcome = run("train", "resume=runs/copy", cwd=tmp_path)
    assert outcome.code == 0
    note = one_line(outcome.err)
    assert "000003: policies/base/model.safetensors is damaged" in note
    assert note.endswith("using runs/copy/checkpoints/000002")
    assert_alike(place, finished())


def test_resume_and_evaluate_of_a_run_with_damaged_checkpoints_only(
    place: Path, tmp_path: Path
) -> None:
    for path in (place / "checkpoints").iterdir():
        flip(path)
    before = sorted(path.read_bytes() for path in place.glob("episodes/*"))
    for command in (("train", "resume=runs/copy"), ("evaluate", "runs/copy")):
        outcome = run(*command, cwd=tmp_path)
        assert outcome.code == 2
        assert "no whole checkpoint" in one_line(outcome.err)
    assert sorted(path.read_bytes() for path in place.glob("episodes/*")) == before
    assert (place / "summary.json").exists(), "a refused resume removed the summary"


@pytest.mark.parametrize(
    ("limit", "background"),
    [(50_000, True), (400_000, True), (400_000, False)],
    ids=["in the weights", "in the optimizer", "in the optimizer, synchronous"],
)
def test_a_full_disk_is_one_line_and_leaves_the_older_checkpoints(
    limit: int, background: bool, tmp_path: Path
) -> None:
    finished()
    full = InjectedFault(at="selfplay.train.Trainer.save", call=3, limit=limit)
    kind = f"run.async_checkpoints={background}"
    outcome = run("train", SMOKE, "run.name=full", kind, cwd=tmp_path, injected=full)
    assert outcome.code == 2
    message = one_line(outcome.err)
    assert (
        "cannot write to runs/full/checkpoints: File too large" in message and "resume" in message
    )
    folder = tmp_path / "runs/full/checkpoints"
    place, faults = checkpoint.latest(folder)
    assert place is not None and place.name == "000001" and not faults
    assert sorted(path.name for path in folder.iterdir()) == ["000000", "000001"]
    assert run("train", "resume=runs/full", cwd=tmp_path).code == 0
    assert_alike(tmp_path / "runs/full", finished())


RENAME = "selfplay.learner.checkpoint_writer.Path.rename"


def overwrite(folder: Path, injected: InjectedFault, background: bool) -> None:
    injected.arm()
    writer = CheckpointWriter(folder, background=background)
    writer.save(step=2, policies={}, learners={}, state={"turn": 2}, keep=1)
    writer.wait()


@pytest.mark.parametrize(
    ("injected", "turn"),
    [
        (InjectedFault(at=RENAME, call=1), 1),
        (InjectedFault(at=RENAME, call=2), 1),
        (InjectedFault(at=RENAME, call=2, after=True), 2),
    ],
    ids=["before the old one is renamed", "between the renames", "before the old one is removed"],
)
@pytest.mark.parametrize("background", [False, True], ids=["synchronous", "in a thread"])
def test_a_kill_during_a_replacement_leaves_the_old_or_the_new_one(
    background: bool, injected: InjectedFault, turn: int, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    old = CheckpointWriter(folder).save(step=2, policies={}, learners={}, state={"turn": 1}, keep=1)
    process = CONTEXT.Process(target=overwrite, args=(folder, injected, background))
    process.start()
    process.join()
    assert process.exitcode == -injected.number
    checkpoint.recover(folder)
    for found in (lambda: checkpoint.latest(folder)[0], lambda: checkpoint.before(folder, 3)):
        assert found() == old and checkpoint.read_state(old)["turn"] == turn
    CheckpointWriter(folder).save(step=2, policies={}, learners={}, state={"turn": 3}, keep=1)
    assert [path.name for path in folder.iterdir()] == ["000002"]
    assert checkpoint.read_state(old)["turn"] == 3


def test_reading_during_a_save_changes_nothing_and_reports_the_save(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        CheckpointWriter(folder).save(step=step, policies={}, learners={}, state={}, keep=2)
    (folder / "000002").rename(folder / ".000002.old")  # the state between two renames of a save
    fault = "000002: being replaced; if no process trains the run, train resume=RUN puts it back"
    assert checkpoint.latest(folder) == (folder / "000001", [fault])
    assert checkpoint.before(folder, 3) == folder / "000001"
    shutil.rmtree(folder / "000001")
    with pytest.raises(RunError, match=fault):
        checkpoint.latest(folder)
    assert [path.name for path in folder.iterdir()] == [".000002.old"]
    checkpoint.recover(folder)
    assert checkpoint.latest(folder) == (folder / "000002", [])


def test_only_the_newest_are_kept_and_damaged_ones_are_not_counted(
    place: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    for step in (0, 1, 2):
        CheckpointWriter(folder).save(step=step, policies={}, learners={}, state={}, keep=2)
    assert sorted(path.name for path in folder.iterdir()) == ["000001", "000002"]
    lose_manifest(folder / "000002")
    shutil.copytree(folder / "000002", folder / "000009")
    CheckpointWriter(folder).save(step=2, policies={}, learners={}, state={}, keep=1)
    assert checkpoint.broken(folder / "000002") is None
    assert sorted(path.name for path in folder.iterdir()) == ["000002", "000009"]


def test_a_policy_folder_loads_into_transformers_as_it_is() -> None:
    place = finished() / "checkpoints/000003/policies/base"
    model: Any = AutoModelForCausalLM.from_pretrained(place)
    tokenizer: Any = AutoTokenizer.from_pretrained(place)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, return_tensors="pt"
    )
    ids = text["input_ids"]
    generated = model.generate(ids, max_new_tokens=3, do_sample=False)
    assert generated.shape[1] > ids.shape[1]
    state = json.loads((finished() / "checkpoints/000003/state.json").read_text())
    assert state["versions"] == {"base": 3}


def saved(folder: Path, step: int, learners: Mapping[str, Any], **policies: Any) -> Path:
    """Write a checkpoint of these models and return its folder."""
    renderer: Any = SimpleNamespace(save_tokenizer=lambda place: {}, tokenizer_files={})
    known = {
        name: Policy(name=name, model=each, renderer=renderer) for name, each in policies.items()
    }
    return CheckpointWriter(folder).save(
        step=step, policies=known, learners=learners, state={}, keep=3
    )


def test_the_state_of_learners_on_a_gpu_is_read_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tensor in the file has the location cuda:0, like a tensor that was saved on a GPU."""
    learner, other = (Learner(llama(), objective=PolicyLoss()) for _ in range(2))
    learner.update([sample([1, 2], [3, 4], 1.0)], step=1)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"player": learner.state_dict()}, tmp_path / "learners.pt")
    assert b"cuda:0" in (tmp_path / "learners.pt").read_bytes()
    state = checkpoint._read_learners(tmp_path / "learners.pt")
    averages = state["player"]["optimizer"]["state"][0]
    assert {tensor.device.type for tensor in averages.values()} == {"cpu"}
    other.load_state_dict(state["player"])
    assert other.steps == 1


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_not_saved(broken: float, tmp_path: Path) -> None:
    model, fixed = llama(), llama().requires_grad_(False)
    learners = {"player": Learner(model, objective=PolicyLoss())}
    saved(tmp_path, 1, learners, player=model, fixed=fixed)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[2, 3] = broken
    message = (
        "step 2: policy 'player': weight model.layers.1.mlp.up_proj.weight is not finite, so no "
        f"checkpoint was written; the last good checkpoint is {tmp_path}/000001"
    )
    with pytest.raises(DivergedError, match=re.escape(message)):
        saved(tmp_path, 2, learners, player=model, fixed=fixed)
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
    with pytest.raises(DivergedError, match="there is no good checkpoint"):
        saved(tmp_path / "new", 1, learners, player=model)


def test_ranks_are_not_asked_to_save_weights_that_are_not_finite(tmp_path: Path) -> None:
    """The policy in this process has the same weights as the ranks."""

    model = llama()
    assert isinstance(HeldRanks(), Sharded)
    with pytest.raises(AssertionError, match="while the training waits"):
        saved(tmp_path, 1, {"base": HeldRanks()}, base=model)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = math.nan
    with pytest.raises(DivergedError, match=r"step 1: policy 'base': weight lm_head.weight is not"):
        saved(tmp_path, 1, {"base": HeldRanks()}, base=model)


def test_an_adapter_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    base = llama().requires_grad_(False)
    model = adapted(base, Lora(rank=2), seed=0, where="policy")
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad)[0, 0] = math.nan
    with pytest.raises(DivergedError, match=r"step 4: policy 'base': weight .*lora_A.* not finite"):
        saved(tmp_path, 4, {}, base=model)


def test_a_critic_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    critic = TransformerCritic(vocabulary=16, hidden=16, layers=1, positions=8, device="cpu")
    saved(tmp_path, 1, {"credit/critic": critic}, base=llama())
    with torch.no_grad():
        critic.head.bias.fill_(math.nan)
    with pytest.raises(DivergedError, match=r"step 2: credit/critic: network.1.bias is not finite"):
        saved(tmp_path, 2, {"credit/critic": critic}, base=llama())


def test_a_run_whose_weights_become_infinite_ends_before_it_saves_them(tmp_path: Path) -> None:
    """The weight decay of one step multiplies the weights by -3.3e38."""
    hot = ("learner.lr=1e30", "learner.weight_decay=3.3e8")
    outcome = run("train", SMOKE, "run.name=hot", *hot, cwd=tmp_path)
    assert outcome.code == 2
    message = one_line(outcome.err)
    assert "step 1: policy 'base': weight " in message and "runs/hot/checkpoints/000000" in message
    folder = tmp_path / "runs/hot/checkpoints"
    assert [path.name for path in folder.iterdir()] == ["000000"]


@pytest.mark.parametrize("setting", ["learner.lr=inf", "learner.clip_norm=nan"])
def test_learner_settings_that_are_not_finite_create_no_run(setting: str, tmp_path: Path) -> None:
    outcome = run("train", SMOKE, "run.name=hot", setting, cwd=tmp_path)
    assert outcome.code == 2
    key, value = setting.split("=")
    assert f"{key}: {value} does not fit: a finite number" in one_line(outcome.err)
    assert not (tmp_path / "runs/hot").exists()
