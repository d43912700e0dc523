"""Tests of the number of GPUs that actors with fractions of GPUs need."""

import pytest
import torch

from selfplay.config.compose import load
from selfplay.errors import ConfigError
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.gpu_parts import gpus_needed
from selfplay.runtime.ray import RayRuntime
from tests.helpers.command_process import SMOKE

pytest.importorskip("ray")


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([], 0),
        ([0.0, 0.0], 0),
        ([0.5] * 8 + [1.0], 5),
        ([0.875] * 8 + [1.0], 9),
        ([0.2] * 15, 3),
        ([0.6, 0.6, 0.3, 0.3, 0.3, 0.4], 3),
        ([0.3] * 4 + [0.7], 2),
        ([0.3] * 5 + [0.7], 3),
        ([2.0, 2.0, 0.3333, 0.3333, 0.3333], 5),
    ],
)
def test_a_fraction_of_a_gpu_is_on_one_gpu(parts: list[float], wanted: int) -> None:
    assert gpus_needed(parts) == gpus_needed(parts[::-1]) == wanted


def test_parts_of_gpus_that_need_more_gpus_than_their_sum_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    players = RolloutSetup(load([SMOKE, "runtime=ray"]))
    with pytest.raises(ConfigError, match=r"^runtime: 9 GPUs are needed, this machine has 8 \(an"):
        RayRuntime(workers=8, worker_gpus=0.6).check(players)
    RayRuntime(workers=7, worker_gpus=0.6).check(players)
