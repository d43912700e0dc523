"""Tests of the loading of learners by a learner rank, in this process."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from selfplay.config import compose
from selfplay.learner.objective import PolicyLoss
from selfplay.runtime import learner_worker
from selfplay.runtime.learner_worker import LearnerConfig, LearnerWorker
from tests.helpers.command_process import SMOKE


@pytest.fixture
def first_of_two() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    dist.destroy_process_group()


@pytest.mark.usefixtures("first_of_two")
@pytest.mark.parametrize(("chosen", "wanted"), [(0, 3), (2, 2)])
def test_the_first_rank_loads_models_with_all_cores(
    chosen: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other ranks wait for the first one. `run.threads` limits the cores that it uses."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it for a rank with one core
    monkeypatch.setattr(learner_worker, "cores", lambda: 3)
    found: list[int] = []

    def loaded(setup: LearnerConfig, device: str) -> dict[str, Any]:
        found.append(torch.get_num_threads())
        return {}

    monkeypatch.setattr(LearnerWorker, "_loaded", staticmethod(loaded))
    setup = LearnerConfig(
        config=compose.load([SMOKE, f"run.threads={chosen}"]),
        objective=PolicyLoss(),
        learners={},
        saved=None,
        gpu=False,
        threads=0,
        host="here",
    )
    assert LearnerWorker().begin(setup) == {}
    assert found == [wanted]
    assert torch.get_num_threads() == 1
