"""Tests of the mesh of learner ranks with several copies of the state."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from selfplay.runtime.learner_worker import LearnerWorker


@pytest.fixture
def six_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=4, world_size=6)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("six_ranks")
def test_groups_of_copies_have_the_time_limit_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[timedelta | None] = []
    new_group = dist.distributed_c10d.new_group

    def made(**settings: Any) -> Any:
        limits.append(settings["timeout"])
        return new_group(**settings)

    monkeypatch.setattr(dist.distributed_c10d, "new_group", made)
    rank = LearnerWorker()
    rank._patience = timedelta(seconds=7)
    mesh = rank._mesh("cpu", 2)
    assert limits == [timedelta(seconds=7)] * (3 + 2)
    assert mesh.mesh.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert mesh.mesh_dim_names == ("replicas", "shards")
    assert tuple(mesh.get_coordinate() or ()) == (1, 1)
    ranks = [dist.get_process_group_ranks(mesh.get_group(name)) for name in ("replicas", "shards")]
    assert ranks == [[1, 4], [3, 4, 5]]
