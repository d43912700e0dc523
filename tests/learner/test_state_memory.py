"""Tests of the memory of a learner's state and its comparison with the GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Linear

from selfplay.errors import ConfigError
from selfplay.learner.learner import Learner
from selfplay.learner.state_memory import check_state_fits, state_bytes
from selfplay.models.tiny import build_model
from tests.helpers.gradients import REINFORCE


def test_trained_parameters_count_four_times_and_frozen_ones_once() -> None:
    trained, frozen = Linear(10, 20, bias=False), Linear(10, 30, bias=False).bfloat16()
    frozen.requires_grad_(False)
    assert state_bytes(trained.parameters()) == 4 * 10 * 20 * 4
    assert state_bytes([*trained.parameters(), *frozen.parameters()]) == 3200 + 10 * 30 * 2
    both = Linear(3, 2)  # 6 weights and 2 biases
    both.weight = torch.nn.Parameter(both.weight.bfloat16(), requires_grad=False)
    assert state_bytes(both.parameters()) == 6 * 2 + 2 * 16


def test_a_state_that_is_larger_than_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(total_memory=3_200)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.empty(10, 20, device="cuda"))
    check_state_fits([weight])
    gpu.total_memory = 3_199
    with pytest.raises(ConfigError, match=r"need 0\.0 GB, .*policy\.lora=\{rank: 16\}") as refused:
        check_state_fits([weight])
    assert "\n" not in str(refused.value)
    check_state_fits([torch.nn.Parameter(torch.empty(10, 20))])  # in main memory


def test_a_learner_checks_the_memory_when_it_makes_its_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(parameters: object) -> None:
        raise ConfigError("too large")

    monkeypatch.setattr("selfplay.learner.learner.check_state_fits", refuse)
    with pytest.raises(ConfigError, match="too large"):
        Learner(
            build_model(20, seed=0, hidden=8, layers=1, heads=1, intermediate=8, positions=16),
            objective=REINFORCE,
        )
