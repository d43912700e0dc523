"""Tests that a full GPU ends a run with an error of one line."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.engines import Engine
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import RunError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.out_of_memory import explained
from selfplay.models.policy import Policy
from selfplay.runtime.engine_worker import EngineWorker
from selfplay.runtime.updatable_engine import EngineDied, UpdatableEngine, UpdateQueue
from selfplay.runtime.weight_sync import AddPolicy
from tests.helpers.builders import llama, sample

FULL = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 9.00 MiB is free. Process 7 has 70.00 GiB memory in use. Of the allocated memory 60 GiB "
    "is allocated by PyTorch. If reserved but unallocated memory is large try setting PYTORCH_"
)
SAMPLES = [sample([5 + n, 6, 7], [8, 9 + n, 10], 1.0 + n) for n in range(2)]


def fail(*given: Any, **named: Any) -> Any:
    raise torch.OutOfMemoryError(FULL)


def test_the_error_has_sizes_and_keys_but_no_advice_of_the_allocator() -> None:
    with pytest.raises(RunError) as raised, explained("sampling", "lower engine.max_rows"):
        fail()
    assert str(raised.value) == (
        "sampling: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
        "79.10 GiB of which 9.00 MiB is free; lower engine.max_rows"
    )
    with pytest.raises(ValueError, match="other"), explained("sampling", ""):
        raise ValueError("other")


@pytest.mark.parametrize("call", ["optimize", "logprobs"])
def test_a_learner_names_its_own_keys(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(llama(), objective=PolicyLoss(), seed=0)
    monkeypatch.setattr(learner, "scorer", fail)
    with pytest.raises(RunError, match=r"GiB of which 9.00 MiB is free; lower learner\.max_tokens"):
        learner.update(SAMPLES, step=3) if call == "optimize" else learner.logprobs(SAMPLES)


def test_the_embedded_engine_names_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersEngine()
    engine.serve("base", llama(), [0])
    monkeypatch.setattr(engine, "_distinct", fail)
    with pytest.raises(RunError, match=r"^sampling: CUDA out of memory.*; lower engine\.max_rows"):
        engine.step()


def test_a_worker_whose_gpu_is_full_is_not_replaced() -> None:
    class Full(Engine):
        serve = withdraw = publish = add = fail
        step = fail

    engine = UpdatableEngine(Full(), UpdateQueue(), lambda change: None)
    with pytest.raises(RunError, match=r"^an engine: CUDA .* lower engine\.memory") as raised:
        engine.step()
    assert not isinstance(raised.value, EngineDied)


def test_a_snapshot_that_a_gpu_has_no_room_for_names_the_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker copies the whole model on its GPU."""
    unused: Any = None
    policy = Policy(name="base", model=llama(), renderer=unused)
    worker, players = EngineWorker(), SimpleNamespace(policies={"base": policy}, engine=None)
    monkeypatch.setattr(worker, "_setup", players)
    monkeypatch.setattr("selfplay.league.snapshots.frozen_copy", fail)
    with pytest.raises(
        RunError, match=r"^the copy 'base@3' of policy 'base': CUDA .*; lower league\.drop\.most"
    ):
        worker._apply(AddPolicy(policy="base@3", player="base"))


def test_progress_grows_with_every_micro_batch() -> None:
    learner = Learner(
        llama(), objective=PolicyLoss(), seed=0, settings=LearnerSettings(max_tokens=6)
    )
    learner.update(SAMPLES, step=1)
    assert learner.micro_batches_begun == 2
    learner.logprobs(SAMPLES)
    assert learner.micro_batches_begun == 4
