"""Checkpoints are whole or not there, and a damaged one is never gone on from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smoke_run import (
    CONTEXT,
    SMOKE,
    Strike,
    assert_alike,
    copy_of_finished,
    finished,
    one_line,
    run,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfplay import checkpoint
from selfplay.errors import RunError


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


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "policies/base/model.safetensors is damaged"),
    "flip": (flip, "learners.pt is damaged"),
    "lose_state": (lose_state, "state.json is missing"),
    "lose_manifest": (lose_manifest, "its manifest is missing or damaged"),
    "cut_manifest": (cut_manifest, "its manifest is missing or damaged"),
    "empty_manifest": (empty_manifest, "its manifest is damaged"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A finished run to damage."""
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


def test_resume_falls_back_says_so_and_comes_to_the_same_end(place: Path, tmp_path: Path) -> None:
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
    assert (place / "summary.json").exists(), "a resume that was refused took the summary away"


@pytest.mark.parametrize("limit", [50_000, 400_000], ids=["in the weights", "in the optimizer"])
def test_a_full_disk_is_one_line_and_leaves_the_older_checkpoints(
    limit: int, tmp_path: Path
) -> None:
    finished()
    full = Strike(at="selfplay.train.save", call=3, limit=limit)
    outcome = run("train", SMOKE, "run.name=full", cwd=tmp_path, strike=full)
    assert outcome.code == 2
    said = one_line(outcome.err)
    assert "cannot write to runs/full/checkpoints: File too large" in said and "resume" in said
    folder = tmp_path / "runs/full/checkpoints"
    place, faults = checkpoint.latest(folder)
    assert place is not None and place.name == "000001" and not faults
    assert sorted(path.name for path in folder.iterdir()) == ["000000", "000001"]
    assert run("train", "resume=runs/full", cwd=tmp_path).code == 0
    assert_alike(tmp_path / "runs/full", finished())


RENAME = "selfplay.checkpoint.Path.rename"


def overwrite(folder: Path, strike: Strike) -> None:
    strike.arm()
    checkpoint.save(folder, step=2, policies={}, learners={}, state={"turn": 2}, keep=1)


@pytest.mark.parametrize(
    ("strike", "turn"),
    [
        (Strike(at=RENAME, call=1), 1),
        (Strike(at=RENAME, call=2), 1),
        (Strike(at=RENAME, call=2, after=True), 2),
    ],
    ids=["before it is set aside", "while nothing stands there", "before it is dropped"],
)
def test_killed_while_one_is_replaced_there_is_the_old_or_the_new(
    strike: Strike, turn: int, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    old = checkpoint.save(folder, step=2, policies={}, learners={}, state={"turn": 1}, keep=1)
    process = CONTEXT.Process(target=overwrite, args=(folder, strike))
    process.start()
    process.join()
    assert process.exitcode == -strike.number
    checkpoint.recover(folder)
    for found in (lambda: checkpoint.latest(folder)[0], lambda: checkpoint.before(folder, 3)):
        assert found() == old and checkpoint.read_state(old)["turn"] == turn
    checkpoint.save(folder, step=2, policies={}, learners={}, state={"turn": 3}, keep=1)
    assert [path.name for path in folder.iterdir()] == ["000002"]
    assert checkpoint.read_state(old)["turn"] == 3


def test_who_only_looks_leaves_a_save_alone_and_is_told_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        checkpoint.save(folder, step=step, policies={}, learners={}, state={}, keep=2)
    (folder / "000002").rename(folder / ".000002.old")  # as between the two renames of a save
    fault = "000002: being replaced, or left so by a kill, which train resume=RUN mends"
    assert checkpoint.latest(folder) == (folder / "000001", [fault])
    assert checkpoint.before(folder, 3) == folder / "000001"
    shutil.rmtree(folder / "000001")
    with pytest.raises(RunError, match=fault):
        checkpoint.latest(folder)
    assert [path.name for path in folder.iterdir()] == [".000002.old"]
    checkpoint.recover(folder)
    assert checkpoint.latest(folder) == (folder / "000002", [])


def test_only_the_newest_are_kept_and_a_damaged_later_one_counts_for_nothing(
    place: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    for step in (0, 1, 2):
        checkpoint.save(folder, step=step, policies={}, learners={}, state={}, keep=2)
    assert sorted(path.name for path in folder.iterdir()) == ["000001", "000002"]
    lose_manifest(folder / "000002")
    shutil.copytree(folder / "000002", folder / "000009")
    checkpoint.save(folder, step=2, policies={}, learners={}, state={}, keep=1)
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
