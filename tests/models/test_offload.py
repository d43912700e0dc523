"""Tests of models and optimizers in main memory, mostly with fake tensors instead of a GPU."""

import copy
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Linear, Module, Parameter

from selfplay.learner.learner import Learner
from selfplay.learner.objective import PolicyLoss
from selfplay.models import offload as offload_module
from selfplay.models.offload import offload
from tests.helpers.builders import llama, sample


def test_modules_and_moments_go_to_main_memory_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[tuple[Module, str]] = []

    def to(module: Module, device: Any) -> Module:
        moves.append((module, str(device)))
        return module

    monkeypatch.setattr(Module, "to", to)

    def apply(module: Module, move: Any) -> Module:
        assert move is in_main_memory
        moves.append((module, "cpu"))
        return module

    def in_main_memory(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu")  # fake tensors have no bytes to copy

    monkeypatch.setattr(Module, "_apply", apply)
    monkeypatch.setattr(offload_module, "in_main_memory", in_main_memory)
    trained, frozen = Linear(4, 4), Linear(4, 4)
    optimizer = torch.optim.AdamW(trained.parameters())
    trained(torch.ones(4)).sum().backward()
    with FakeTensorMode():  # has tensors of a GPU without a GPU
        state: dict[str, Any] = {"step": torch.zeros(()), "exp_avg": torch.zeros(4, device="cuda")}
        optimizer.state[trained.weight] = state
        restore = offload([trained, frozen], optimizer)
        assert moves == [(trained, "cpu"), (frozen, "cpu")]
        assert trained.weight.grad is None
        assert {name: value.device.type for name, value in state.items()} == {
            "step": "cpu",
            "exp_avg": "cpu",
        }
        restore()
        assert moves[2:] == [(trained, "cpu"), (frozen, "cpu")], "back to the first devices"
        assert (state["step"].device.type, state["exp_avg"].device.type) == ("cpu", "cuda")


def test_parameters_stay_the_same_objects() -> None:
    trained, frozen = Linear(4, 4), Linear(4, 4)
    frozen.weight = trained.weight  # like adapters that share the tensors of their base
    known = [id(parameter) for parameter in (*trained.parameters(), *frozen.parameters())]
    offload([trained, frozen])()
    assert known == [id(parameter) for parameter in (*trained.parameters(), *frozen.parameters())]


def test_learners_of_two_adapters_over_one_base_return_to_their_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device "meta" is used instead of a GPU; parameters keep their identity."""
    monkeypatch.setattr(
        offload_module, "in_main_memory", lambda tensor: torch.empty_like(tensor, device="cpu")
    )
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    base = Parameter(torch.empty(4, 4, device="meta"), requires_grad=False)
    policies = [Module(), Module()]
    for policy in policies:
        policy.base = base
        policy.adapter = Parameter(torch.empty(2, 4, device="meta"))

    def places() -> set[str]:
        return {p.device.type for policy in policies for p in policy.parameters()}

    restores = [offload([policy]) for policy in policies]  # one call for each learner
    assert places() == {"cpu"} and policies[0].base is policies[1].base
    while restores:
        restores.pop()()
    assert places() == {"meta"} and policies[0].base is policies[1].base


@pytest.mark.gpu
def test_a_learner_frees_the_memory_of_a_gpu_and_continues() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    objective: Any = PolicyLoss(kl=0.1, reference="ema", ema_rate=0.5)
    learners = []
    for _ in range(2):
        model: Any = llama(seed=0)
        model.to("cuda")
        learners.append(Learner(model, objective=objective, reference=copy.deepcopy(model)))
    moved, stayed = learners
    samples = [sample([1, 2, 3], [5, 6], 1.0), sample([4], [7, 8, 9], -0.5)]
    for step in (1, 2):
        wanted, found = stayed.update(samples, step=step), moved.update(samples, step=step)
        assert found == wanted
        before = torch.cuda.memory_allocated()
        restore = moved.offload()
        weights = sum(p.numel() * 4 for p in moved.model.parameters())
        assert torch.cuda.memory_allocated() <= before - 4 * weights  # also reference and moments
        restore()
    for one, other in zip(moved.model.parameters(), stayed.model.parameters(), strict=True):
        assert torch.equal(one, other)
