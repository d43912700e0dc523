"""Tests of tensor parallelism on two GPUs: updates and adapters reach both GPUs.

The tests run in an environment of their own, after `pip install -e '.[vllm]' pytest peft`:
python -m pytest -m "vllm and gpu" tests/engines/vllm/test_tensor_parallel_gpu.py
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from selfplay.engines.vllm.engine import ROUGH, VLLMEngine
from selfplay.errors import RunError
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.types import Request
from tests.engines.vllm.test_engine_gpu import difference, make, shake
from tests.helpers import shard_faults
from tests.helpers.engine_requests import END, answer, ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed"),
]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    pytest.importorskip("vllm")
    yield


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_update_reaches_both_gpus(device: str, eager: bool, ahead: bool) -> None:
    model = torch.nn.Module.to(make(torch.bfloat16), device=device)
    engine = VLLMEngine(
        max_rows=32, memory=0.2, eager=eager, tensor_parallel=2, async_scheduling=ahead
    )
    engine.serve("p", model, [END])
    try:
        (group,) = engine._groups.values()
        compared = group._arrival._copies
        assert compared is not None
        assert compared["model.layers.0.self_attn.qkv_proj.weight"] == [1, 1, 1]
        assert compared["model.layers.0.input_layernorm.weight"] == [2]
        for version in (1, 2):
            shake(model, version)
            engine.publish("p", model.state_dict(), version)
            requests = ask(20)
            found = answer(engine, requests)
            assert difference(model, requests, found) < ROUGH
            assert {done.version for done in found.values()} == {version}
        group.host.engine.collective_rpc(shard_faults.lose_weights)
        shake(model, 3)
        engine.publish("p", model.state_dict(), 3)
        engine.add(Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=5))
        with pytest.raises(RunError, match=r"version 3 did not reach vLLM: .* tensors of the eng"):
            engine.step()
    finally:
        engine.close()


def test_adapters_reach_both_gpus() -> None:
    base: Any = make(torch.bfloat16).requires_grad_(False)
    model = adapted(base, Lora(rank=8), seed=0, where="x").eval()
    engine = VLLMEngine(max_rows=32, memory=0.2, tensor_parallel=2)
    engine.serve("p", model, [END])
    try:
        for version in (1, 2):
            shake(model, version)
            engine.publish("p", model.state_dict(), version)
            requests = ask(20)
            assert difference(model, requests, answer(engine, requests)) < ROUGH
    finally:
        engine.close()
