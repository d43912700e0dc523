"""Tests that a checkpoint written in the background equals one that is written at once."""

import errno
import gc
import hashlib
import io
import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.errors import DivergedError, LearnersLost, RunError
from selfplay.learner import Sharded, checkpoint, sharded_checkpoint
from selfplay.learner.checkpoint_content import CheckpointContent, FrozenPolicy
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.policy import Policy
from selfplay.run import files
from selfplay.run.hashing_file import HashingFile
from tests.helpers.builders import llama, same, sample, weights
from tests.helpers.held_ranks import HeldRanks

LONGEST = 60.0
"""Seconds after which a test counts as hanging."""
SYNC = "selfplay.learner.checkpoint_writer.sync"


class Training:
    """A policy of random weights that learns with an EMA."""

    def __init__(self, folder: Path, *, background: bool = True, seed: int = 0) -> None:
        self.model = llama(seed)
        objective = PolicyLoss(kl=0.1, reference="ema", ema_rate=0.5)
        self.learner = Learner(
            self.model,
            objective=objective,
            reference=llama(seed),
            settings=LearnerSettings(lr=1e-2),
        )
        renderer: Any = SimpleNamespace(save_tokenizer=lambda place: {}, tokenizer_files={})
        self.policy = Policy(name="base", model=self.model, renderer=renderer)
        self.writer = CheckpointWriter(folder, background=background)

    def learn(self, step: int) -> None:
        """Change the weights, Adam's averages and the EMA in place."""
        self.learner.update([sample((1, 2), (3, step % 20), 1.0)], step=step)
        self.policy.version += 1

    def save(self, step: int, *, keep: int = 2) -> Path:
        return self.writer.save(
            step=step,
            policies={"base": self.policy},
            learners={"base": self.learner},
            state={"numbers": [step]},
            keep=keep,
        )

    def load(self, place: Path) -> None:
        checkpoint.load(place, policies={"base": self.policy}, learners={"base": self.learner})


class Gate:
    """A gate that holds the writing thread at every part of a file until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        write = HashingFile.write

        def held(file: HashingFile, data: Any) -> int:
            if threading.current_thread().name == "checkpoint":
                self.reached.set()
                assert self._open.wait(LONGEST)
            return write(file, data)

        monkeypatch.setattr(HashingFile, "write", held)

    def open(self) -> None:
        self._open.set()

    def open_soon(self) -> None:
        """Open the gate while the caller waits for something else."""
        threading.Timer(0.2, self.open).start()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def contents(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }


def full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_learning_does_not_change_what_a_slow_thread_writes(gate: Gate, tmp_path: Path) -> None:
    training = Training(tmp_path / "ours")
    at_once = Training(tmp_path / "theirs", background=False)
    for step in (1, 2):
        training.learn(step)
        at_once.learn(step)
    theirs = at_once.save(2)
    ours = training.save(2)
    assert gate.reached.wait(LONGEST)
    before = weights(training.model)
    for step in (3, 4, 5):
        training.learn(step)
    assert not same(before, weights(training.model)) and not ours.exists()
    gate.open()
    training.writer.wait()
    assert contents(ours) == contents(theirs)
    assert checkpoint.broken(ours) is None


def test_a_manifest_has_the_hashes_of_the_files(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.learn(1)
    place = training.save(1)
    training.writer.wait()
    written = contents(place)
    hashes = json.loads(written.pop(checkpoint.MANIFEST))
    assert hashes == {name: hashlib.sha256(data).hexdigest() for name, data in written.items()}


def test_large_files_are_not_read_again_for_their_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    hash_of = files.sha256

    def noted(path: Path) -> str:
        read.append(path.name)
        return hash_of(path)

    monkeypatch.setattr("selfplay.learner.checkpoint_writer.sha256", noted)
    training = Training(tmp_path)
    training.save(1)
    training.writer.wait()
    assert sorted(read) == ["config.json", "generation_config.json"]


def test_a_run_continues_bit_for_bit_from_a_checkpoint(tmp_path: Path) -> None:
    training, again = Training(tmp_path), Training(tmp_path, seed=1)
    training.learn(1)
    place = training.save(1)
    training.learn(2)
    again.load(place)  # waits for the thread
    again.learn(2)
    assert same(weights(training.model), weights(again.model))
    assert again.policy.version == training.policy.version == 2


READERS: dict[str, Callable[[Path], object]] = {
    "latest": lambda folder: checkpoint.latest(folder)[0],
    "kept": lambda folder: checkpoint.kept(folder)[0],
    "before": lambda folder: checkpoint.before(folder, 3),
    "at": lambda folder: checkpoint.at(folder, 2),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_waits_for_the_thread(reader: str, gate: Gate, tmp_path: Path) -> None:
    place = Training(tmp_path).save(2)
    gate.open_soon()
    assert READERS[reader](tmp_path) == place


def test_dropping_checkpoints_waits_for_the_thread(gate: Gate, tmp_path: Path) -> None:
    place = Training(tmp_path).save(2)
    gate.open_soon()
    checkpoint.drop_after(tmp_path, 1)
    assert not place.exists() and not [*tmp_path.iterdir()]


def test_the_next_save_waits_and_there_is_one_copy(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[CheckpointContent]] = []
    copied = CheckpointContent.copied

    def noted(content: CheckpointContent) -> CheckpointContent:
        gc.collect()
        assert not [each for each in made if each() is not None], "two copies at once"
        found = copied(content)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(CheckpointContent, "copied", noted)
    training = Training(tmp_path)
    training.save(1)
    assert gate.reached.wait(LONGEST) and made[0]() is not None
    gate.open_soon()
    training.save(2)
    training.writer.wait()
    gc.collect()
    assert [each() for each in made] == [None, None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000002"]


NEXT: dict[str, Callable[[Training], object]] = {
    "wait": lambda training: training.writer.wait(),
    "save": lambda training: training.save(3),
}


@pytest.mark.parametrize("point", NEXT)
def test_an_error_of_the_thread_is_raised_at_the_next_point(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path)
    good = training.save(1)
    training.writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(SYNC, full)
        training.save(2)
        assert checkpoint.latest(tmp_path) == (good, [])  # a reader waits and uses the old one
    with pytest.raises(RunError, match=r"cannot write to .*: No space left on device; earlier"):
        NEXT[point](training)
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
    training.save(3)
    training.writer.wait()
    assert checkpoint.latest(tmp_path)[0] == tmp_path / "000003"


@pytest.mark.parametrize("room", [100, 30_000], ids=["in the weights", "in the optimizer"])
def test_a_full_disk_is_named_by_each_writer(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check both kinds of files; for its own files torch raises another error than the disk."""
    write = io.FileIO.write

    class SmallDisk(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > room:
                full()
            return write(self, data)

    monkeypatch.setattr("selfplay.run.hashing_file.io.FileIO", SmallDisk)
    training = Training(tmp_path)
    training.learn(1)
    training.save(1)
    with pytest.raises(RunError, match="No space left on device"):
        training.writer.wait()
    assert not [*tmp_path.iterdir()]


def test_folders_in_the_files_of_a_frozen_policy_are_linked_too(tmp_path: Path) -> None:
    """Check a tokenizer with several chat templates, which has a folder of them."""

    def save_tokenizer(place: Path) -> dict[str, str]:
        (place / "additional_chat_templates").mkdir(parents=True)
        (place / "additional_chat_templates/tool_use.jinja").write_text("{{ messages }}")
        return {}

    training = Training(tmp_path)
    renderer: Any = SimpleNamespace(save_tokenizer=save_tokenizer, tokenizer_files={})
    frozen, written = Policy(name="base@0", model=llama(), renderer=renderer), None
    for step in (1, 2):
        place = training.writer.save(
            step=step,
            policies={"base": training.policy},
            learners={},
            state={},
            keep=2,
            frozen={"base@0": FrozenPolicy(policy=frozen, written=written)},
        )
        training.writer.wait()
        written = place / checkpoint.FROZEN / "base@0"
    first, second = (contents(tmp_path / f"00000{n}/{checkpoint.FROZEN}") for n in (1, 2))
    assert first == second and "base@0/additional_chat_templates/tool_use.jinja" in first
    assert checkpoint.broken(place) is None


def test_an_old_checkpoint_that_cannot_be_removed_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path)
    training.save(1, keep=1)
    training.writer.wait()
    monkeypatch.setattr(
        "shutil.rmtree", lambda path, ignore_errors=False: None if ignore_errors else full()
    )
    training.save(2, keep=1)
    with pytest.raises(RunError, match=r"cannot write to .*: No space left on device"):
        training.writer.wait()
    assert checkpoint.latest(tmp_path)[0] == tmp_path / "000002"


def test_weights_that_are_not_finite_are_refused_at_once(gate: Gate, tmp_path: Path) -> None:
    training = Training(tmp_path)
    good = training.save(1)
    with torch.no_grad():
        training.model.lm_head.weight[0, 0] = torch.inf
    gate.open_soon()
    with pytest.raises(DivergedError, match=f"the last good checkpoint is {good}"):
        training.save(2)
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_parts_of_ranks_are_hashed_while_they_are_written(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.learn(1)
    hashes = sharded_checkpoint.save(sharded_checkpoint.parts(training.learner), tmp_path)
    written = contents(tmp_path)
    assert ".metadata" in written and len(written) == 2
    assert hashes == {name: hashlib.sha256(data).hexdigest() for name, data in written.items()}


def test_ranks_write_in_the_background_too(tmp_path: Path) -> None:
    ranks, writer = HeldRanks(), CheckpointWriter(tmp_path, background=True)
    assert isinstance(ranks, Sharded)
    place = writer.save(step=1, policies={}, learners={"base": ranks}, state={}, keep=2)
    assert not place.exists()
    ranks.let.set()
    writer.wait()
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["learners/base/part"] == hashlib.sha256(b"part").hexdigest()
    ranks.error = LearnersLost("learner rank 1 died (end_save)")
    writer.save(step=2, policies={}, learners={"base": ranks}, state={}, keep=2)
    with pytest.raises(LearnersLost, match="rank 1"):
        writer.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
