"""Tests that ranks load what any number of ranks saved, at once or in the background."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.errors import RunError
from selfplay.learner import learner as learning
from selfplay.learner import sharded_checkpoint
from selfplay.learner.checkpoint_content import named_tensors
from selfplay.learner.learner import Learner
from tests.helpers.learner_processes import Forks, batch, fetched, ranked
from tests.helpers.rank_learners import (
    CASES,
    Make,
    assert_close,
)


def test_any_number_of_copies_reads_what_another_number_saved(
    four: Forks, two: Forks, tmp_path: Path
) -> None:
    make, given = CASES["float32"]
    alone, together = make(), ranked(four, make, replicas=2)
    for step in (1, 2):
        alone.update(given, step=step)
        together.update(given, step=step)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    hashes = together.save_shards(first)
    assert set(hashes) == {path.name for path in first.iterdir()}
    other = ranked(two, make)
    other.policy.model.load_state_dict(fetched(together).state_dict())
    other.load_shards(first)
    for learner in (alone, together, other):
        learner.update(given, step=3)
    assert_close(fetched(together), alone.model, make)
    assert_close(fetched(other), alone.model, make)
    other.save_shards(second)
    copies = ranked(four, make, replicas=4)
    copies.policy.model.load_state_dict(fetched(other).state_dict())
    copies.load_shards(second)
    for learner in (alone, copies):
        learner.update(given, step=4)
    assert_close(fetched(copies), alone.model, make)


@pytest.mark.parametrize("case", ["ema", "adapter's EMA", "one embedding"])
def test_a_checkpoint_of_ranks_is_resumed_with_any_number_of_them(
    case: str, two: Forks, three: Forks, tmp_path: Path
) -> None:
    make, given = CASES[case]
    alone, together = make(), ranked(two, make)
    alone.update(given, step=1)
    together.update(given, step=1)
    hashes = together.save_shards(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert hashes == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert {name[:4] for name in files} == {"__0_", "__1_", ".met"}, "not every rank has written"
    wanted = alone.update(given, step=2)
    saved = fetched(together).state_dict()  # before other learners take its processes

    one, others = make(), [ranked(forks, make) for forks in (two, three)]
    one.model.load_state_dict(saved)
    sharded_checkpoint.load(one, tmp_path)
    assert one.update(given, step=2)["gradient_norm"] == pytest.approx(wanted["gradient_norm"])
    assert_close(one.model, alone.model, make)
    for other in others:
        other.policy.model.load_state_dict(saved)
        other.load_shards(tmp_path)
        other.update(given, step=2)
        assert_close(fetched(other), alone.model, make)


@pytest.mark.parametrize("case", ["ema", "adapter's EMA", "one embedding"])
def test_ranks_learn_while_copies_of_their_parts_are_written(
    case: str, two: Forks, tmp_path: Path
) -> None:
    make, given = CASES[case]
    together = ranked(two, make)
    together.update(given, step=1)
    folders = tmp_path / "at once", tmp_path / "background"
    for folder in folders:
        folder.mkdir()
    together.save_shards(folders[0])
    two.ask("hold")
    written = together.begin_shards(folders[1])
    together.update(given, step=2)
    assert not list(folders[1].iterdir()), "the files were written before the thread was released"
    two.ask("release")
    hashes = written()
    files = {path.name: path.read_bytes() for path in folders[1].iterdir()}
    assert hashes == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert {name[:4] for name in files} == {"__0_", "__1_", ".met"}, "not every rank has written"
    states = []
    for folder in folders:
        one = make()
        sharded_checkpoint.load(one, folder)
        assert one.steps == 1
        states.append(dict(named_tensors(one.state_dict())))
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][keys]) for keys, tensor in states[0].items())


def test_a_folder_that_cannot_be_written_to_is_an_error_in_the_wait(
    two: Forks, tmp_path: Path
) -> None:
    together = ranked(two, Make())
    with pytest.raises(RunError, match=r"does not see .*absent; set run.folder to"):
        together.begin_shards(tmp_path / "absent")
    two.ask("hold")
    (tmp_path / "gone").mkdir()
    written = together.begin_shards(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").write_text("")
    two.ask("release")
    with pytest.raises(RunError, match=r"cannot write to .*gone"):
        written()


@pytest.mark.parametrize("case", ["ema", "adapter"])
def test_a_checkpoint_of_one_process_is_resumed_with_ranks(case: str, two: Forks) -> None:
    make, given = CASES[case]
    alone, together = make(), ranked(two, make)
    alone.update(given, step=1)
    together.policy.model.load_state_dict(alone.model.state_dict())
    together.load_state_dict(alone.state_dict())
    alone.update(given, step=2)
    together.update(given, step=2)
    assert_close(fetched(together), alone.model, make)


def test_ranks_keep_their_average_if_the_state_has_none(two: Forks) -> None:
    """Check ranks and one process, with the state of a run that began without a KL term."""
    make, given = CASES["ema"]
    alone, together = make(), ranked(two, make)
    for each in (alone, together):
        state = {**alone.state_dict()}
        del state["ema"]
        each.load_state_dict(state)
        each.update(given, step=1)
    assert_close(fetched(together), alone.model, make)


def test_a_checkpoint_before_the_first_update_can_be_loaded(two: Forks, tmp_path: Path) -> None:
    make = Make()
    alone, together, one = make(), ranked(two, make), make()
    together.save_shards(tmp_path)
    together.load_shards(tmp_path)
    sharded_checkpoint.load(one, tmp_path)
    for learner in (alone, together, one):
        learner.update(batch(), step=1)
    assert_close(fetched(together), alone.model, make)
    assert_close(one.model, alone.model, make)


def test_shards_that_cannot_be_used_are_one_line_errors(two: Forks, tmp_path: Path) -> None:
    make = Make()
    together = ranked(two, make)
    together.update(batch(), step=1)
    with pytest.raises(RunError, match=r"does not see .*absent; set run.folder to"):
        together.save_shards(tmp_path / "absent")
    with pytest.raises(RunError, match=r"cannot read .*absent"):
        sharded_checkpoint.load(make(), tmp_path / "absent")
    together.save_shards(tmp_path)
    with pytest.raises(RunError, match=r"it has an optimizer of .* which is not trained here"):
        sharded_checkpoint.load(Make(model="adapter")(), tmp_path)
    (tmp_path / "__1_0.distcp").unlink()
    with pytest.raises(RunError, match="cannot read"):
        sharded_checkpoint.load(make(), tmp_path)


def on_a_device(make: Make, monkeypatch: pytest.MonkeyPatch) -> Learner:
    """Return a learner with a fused optimizer on the device `meta`, which represents a GPU."""
    made = make()
    torch.nn.Module.to(made.model, "meta")
    with monkeypatch.context() as patch:
        patch.setattr(learning, "FUSED_FROM", 1)
        made.make_optimizer()
    assert made.optimizer.param_groups[0]["fused"]
    return made


def step_counters(learner: Learner) -> list[torch.Tensor]:
    counters = [learner.optimizer.state[weight]["step"] for weight in learner.parameters]
    assert counters
    return counters


def test_a_fused_optimizer_gets_its_step_counters_on_its_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Torch would read into new tensors in place of those on `meta`.
    planner = "torch.distributed.checkpoint.default_planner"
    monkeypatch.setattr(f"{planner}._init_state_dict", lambda state: None)
    make = Make(dtype=torch.float32)
    alone = make()
    alone.update(batch(), step=1)
    sharded_checkpoint.save(sharded_checkpoint.parts(alone), tmp_path)
    for restore in (
        lambda learner: sharded_checkpoint.load(learner, tmp_path),
        lambda learner: sharded_checkpoint.take(learner, alone.state_dict()),
        lambda learner: learner.load_state_dict(alone.state_dict()),
    ):
        restored = on_a_device(make, monkeypatch)
        restore(restored)
        assert {counter.device.type for counter in step_counters(restored)} == {"meta"}
        restored = make()
        restore(restored)
        assert {counter.device.type for counter in step_counters(restored)} == {"cpu"}


class GpuNumber(torch.Tensor):
    """A tensor that represents one on a GPU until it is moved to main memory."""

    def to(self, *where: Any, **options: Any) -> torch.Tensor:
        assert where == ("cpu",)
        return self.as_subclass(torch.Tensor)


def test_the_step_counters_of_a_gpu_are_moved_to_main_memory() -> None:
    make = Make(dtype=torch.float32)
    alone, other = make(), make()
    alone.update(batch(), step=1)
    state = alone.state_dict()
    for values in state["optimizer"]["state"].values():
        values["step"] = values["step"].as_subclass(GpuNumber)
    sharded_checkpoint.take(other, state)
    assert {type(counter) for counter in step_counters(other)} == {torch.Tensor}
