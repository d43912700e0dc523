"""Tests of tensor parallelism: two processes with half a model each sample like a whole model.

The tests run where vLLM is installed: scripts/setup vllm, then
.venv-vllm/bin/python -m pytest -m "vllm and not gpu" tests/engines/vllm/test_tensor_parallel.py
"""

import copy
import os
from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.engines.vllm import weight_buffer
from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.engines.vllm.shard_processes import DividedSizes
from selfplay.errors import ConfigError, EngineFailed, RunError
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.types import Request
from tests.helpers import shard_faults
from tests.helpers.engine_requests import END, answer
from tests.helpers.vllm_engine import (
    DIFFERENCE,
    asked,
    difference,
    emptied,
    finish,
    in_turn,
    make,
    shake,
)

pytestmark = pytest.mark.vllm

SETTINGS = {"max_rows": 16, "cache": 0.02, "options": {"block_size": 32}}


def split(**more: object) -> VLLMEngine:
    return VLLMEngine(**SETTINGS, tensor_parallel=2, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared() -> Iterator[VLLMEngine]:
    engine = split()
    engine.serve("resident", make(), [END])
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: VLLMEngine) -> Iterator[VLLMEngine]:
    yield from emptied(shared)


def test_two_shards_sample_like_one_before_and_after_every_update(engine: VLLMEngine) -> None:
    model = make(1)
    alone = VLLMEngine(**SETTINGS)  # type: ignore[arg-type]
    try:
        for each in (engine, alone):
            each.serve("p", model, [END])
        engine.drain_metrics()
        for version in range(3):
            before = copy.deepcopy(model)
            if version:
                shake(model, version)
                for each in (engine, alone):
                    each.publish("p", model.state_dict(), version)
            requests = asked("p", 10, seed=version)
            found, wanted = answer(engine, requests), answer(alone, requests)
            for request in requests:
                one, other = found[request.id], wanted[request.id]
                assert one.completion_ids == other.completion_ids and one.version == version
                torch.testing.assert_close(
                    torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-4, rtol=0
                )
            assert difference(model, requests, found) < 1e-5
            if version:
                assert difference(before, requests, found) > 10 * DIFFERENCE
        counts = engine.drain_metrics()
        assert counts["loads"] >= 2 and 0 < counts["proof_difference"] < 1e-5
    finally:
        alone.close()


def test_weights_pass_in_pieces_that_divide_a_layer(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_buffer, "PIECE", 1)
    model = make(2)
    engine.serve("p", model, [END])
    requests = asked("p", 5)
    assert difference(model, requests, answer(engine, requests)) < 1e-5


@pytest.mark.parametrize("size", [0.02, 1e-4])
def test_a_shard_that_loses_its_part_of_an_update_ends_the_run(
    engine: VLLMEngine, size: float
) -> None:
    model = make(3)
    engine.serve("p", model, [END])
    (group,) = engine._groups.values()
    assert group._arrival._copies is not None
    assert group._arrival._copies["model.norm.weight"] == [2], "both shards have a copy"
    assert group._arrival._copies["model.embed_tokens.weight"] == [1], "the shards have a part each"
    host = group.host.engine
    host.collective_rpc(shard_faults.lose_weights)
    try:
        shake(model, 1, size)
        engine.publish("p", model.state_dict(), 4)
        engine.add(Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=5))
        with pytest.raises(RunError, match=r"^policy 'p': version 4 did not reach vLLM: .*tensors"):
            engine.step()
    finally:
        host.collective_rpc(shard_faults.heal)
    assert len(finish(engine)) == 1


def test_weights_that_a_shard_refuses_give_an_error_of_one_line(engine: VLLMEngine) -> None:
    strange = make(8)
    strange.register_parameter("strange", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(ConfigError, match=r"vLLM refuses the weights: .*strange") as raised:
        engine.serve("p", strange, [END])
    assert "\n" not in str(raised.value)
    requests = asked("resident", 3)
    found = answer(engine, requests)
    assert difference(engine._policies["resident"][0].model, requests, found) < 1e-5


def test_adapters_reach_both_shards_and_one_that_loses_its_part_ends_the_run() -> None:
    base = make(3).requires_grad_(False)
    one, other = (adapted(base, Lora(rank=4), seed=seed, where="x").eval() for seed in (1, 2))
    shake(one, 1, 0.2)
    shake(other, 2, 0.2)
    engine = split(adapters=2, rank=4)
    models: dict[str, PreTrainedModel] = {"one": one, "other": other}
    try:
        for name, model in models.items():
            engine.serve(name, model, [END])
        (group,) = engine._groups.values()
        host = group.host.engine
        for version in (1, 2):
            shake(one, 10 + version, 0.1)
            engine.publish("one", one.state_dict(), version)
            requests = in_turn([*models], 8, max_tokens=6)
            found = answer(engine, requests)
            for name, model in models.items():
                mine = [request for request in requests if request.policy == name]
                assert difference(model, mine, found) < 1e-5
        host.collective_rpc(shard_faults.lose_adapters)
        shake(one, 20, 0.01)
        engine.publish("one", one.state_dict(), 3)
        engine.add(Request(id=0, policy="one", prompt_ids=(5,), seed=0, max_tokens=5))
        with pytest.raises(RunError, match=r"^policy 'one': version 3 did not reach vLLM"):
            engine.step()
    finally:
        engine.close()


def test_a_model_that_cannot_be_divided_is_refused_before_a_process_starts() -> None:
    engine = VLLMEngine(**SETTINGS, tensor_parallel=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as raised:
        engine.serve("p", make(), [END])
    assert str(raised.value) == (
        "engine.tensor_parallel: policy 'p': 3 shards cannot divide its 2 attention heads; set "
        "engine.tensor_parallel=2"
    )


def test_the_error_of_a_shard_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DividedSizes, "check", lambda *given, **named: None)
    engine = split()
    with pytest.raises(
        ConfigError, match=r"Qwen3ForCausalLM: AssertionError: assert .*tp_size"
    ) as raised:
        engine.serve("p", make(intermediate=97), [END])
    assert "\n" not in str(raised.value)


def test_a_shard_that_dies_ends_the_engine_in_one_line() -> None:
    import psutil

    engine = split()
    engine.serve("p", make(), [END])
    (group,) = engine._groups.values()
    numbers = group.host.engine.collective_rpc(shard_faults.process_of)
    assert len({os.getpid(), *numbers}) == 3
    shards = [psutil.Process(number) for number in numbers]
    try:
        engine.add(Request(id=0, policy="p", prompt_ids=(5,), seed=0, max_tokens=100))
        shards[shard_faults.FAULTY_RANK].kill()
        with pytest.raises(EngineFailed, match=r"^vLLM failed during a step: one of its processes"):
            while True:
                engine.step()
    finally:
        engine.close()
    _, alive = psutil.wait_procs(shards, timeout=60)
    assert not alive
