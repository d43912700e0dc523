"""Tests of the vLLM engine on a GPU: half precision, CUDA graphs, memory shared with a learner.

The tests run in an environment of their own, after `pip install -e '.[vllm]' pytest peft`:
python -m pytest -m "vllm and gpu" tests/engines/vllm/test_engine_gpu.py
"""

import copy
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.engines.vllm.engine import ROUGH, VLLMEngine
from selfplay.errors import ConfigError
from selfplay.models.lora import adapted
from selfplay.models.policy_settings import Lora
from selfplay.models.tiny import build_model
from selfplay.types import Completion, Request
from tests.helpers.engine_requests import END, answer, ask, teacher

pytestmark = [pytest.mark.vllm, pytest.mark.gpu]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """Skip the tests without vLLM, because `-m gpu` also runs in environments without it."""
    pytest.importorskip("vllm")
    yield


def make(dtype: torch.dtype) -> PreTrainedModel:
    model = build_model(330, seed=0, hidden=256, layers=2, heads=4, intermediate=512, positions=256)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(2.0)
    return torch.nn.Module.to(model, device="cuda", dtype=dtype).eval()


def shake(model: PreTrainedModel, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02 * torch.randn_like(parameter))


def difference(
    model: PreTrainedModel, requests: list[Request], found: dict[int, Completion]
) -> float:
    own = torch.nn.Module.to(copy.deepcopy(model), device="cpu")
    apart = [
        (torch.tensor(found[r.id].logprobs) - teacher(own, r, found[r.id], 1.0)).abs()
        for r in requests
    ]
    return float(torch.cat(apart).mean())


def test_another_thread_steps_on_the_stream_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(torch.float32)
    engine = VLLMEngine(max_rows=32, memory=0.2, eager=True, dtype="float32")
    engine.serve("p", model, [END])
    try:
        (group,) = engine._groups.values()
        core, step = group.host, group.host.engine.step
        streams: list[torch.cuda.Stream] = []

        def watched() -> Any:
            streams.append(torch.cuda.current_stream())
            return step()

        monkeypatch.setattr(core.engine, "step", watched)
        requests = ask(20)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(answer, engine, requests).result()
        assert set(streams) == {core.stream}
        assert difference(model, requests, found) < 1e-2
    finally:
        engine.close()


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_update_arrives(dtype: torch.dtype, eager: bool) -> None:
    """Updates also reach CUDA graphs, whose memory does not move."""
    model = make(dtype)
    kind: Any = str(dtype).removeprefix("torch.")
    engine = VLLMEngine(max_rows=32, memory=0.2, eager=eager, dtype=kind)
    engine.serve("p", model, [END])
    try:
        for version in (1, 2, 3):
            shake(model, version)
            engine.publish("p", model.state_dict(), version)
            requests = ask(20)
            found = answer(engine, requests)
            allowed = 1e-2 if dtype is torch.float32 else ROUGH
            assert difference(model, requests, found) < allowed
            assert {done.version for done in found.values()} == {version}
    finally:
        engine.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_tokens_are_stamped_with_the_weights_that_sampled_them(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With async scheduling, a step with the old weights is under way when new weights arrive."""
    monkeypatch.setattr("selfplay.engines.vllm.engine.STRIDE", 4)
    model = make(torch.float32)
    old = copy.deepcopy(model)
    engine = VLLMEngine(
        max_rows=32, memory=0.2, eager=True, dtype="float32", async_scheduling=ahead
    )
    engine.in_flight_updates = True
    engine.serve("p", model, [])
    try:
        request = Request(id=0, policy="p", prompt_ids=(5, 6), seed=0, max_tokens=20)
        engine.add(request)
        assert not engine.step()
        shake(model, 1)
        engine.publish("p", model.state_dict(), 1)
        (done,) = [done for _ in range(20) for done in engine.step()]
        assert done.versions == ((0, 4), (1, 16))
        torch.nn.Module.to(old, device="cpu")
        apart = (torch.tensor(done.logprobs) - teacher(old, request, done, 1.0)).abs()
        assert float(apart[:4].mean()) < 1e-2 < float(apart[4:].mean())
    finally:
        engine.close()


@pytest.mark.parametrize("eager", [True, False])
def test_async_scheduling_loses_no_request_and_samples_by_the_model(eager: bool) -> None:
    """There are more requests than rows; most end at an end token during the next step."""
    model = make(torch.float32)
    engine = VLLMEngine(max_rows=8, memory=0.2, eager=eager, dtype="float32", async_scheduling=True)
    engine.serve("p", model, [END, *range(100, 120)])
    try:
        for version in (1, 2):
            shake(model, version)
            engine.publish("p", model.state_dict(), version)
            requests = ask(60, max_tokens=30)
            found = answer(engine, requests)
            assert difference(model, requests, found) < 1e-2
            assert {done.version for done in found.values()} == {version}
    finally:
        engine.close()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("lora", [None, Lora(rank=8)])
def test_an_engine_sleeps_while_the_learner_learns(lora: Lora | None, ahead: bool) -> None:
    """Each case runs in its own process, because only one engine of a process can sleep."""
    child = multiprocessing.get_context("spawn").Process(target=sleep_and_learn, args=(lora, ahead))
    child.start()
    child.join(300)
    child.kill()  # so that a process that hangs does not keep the GPU
    child.join()
    assert child.exitcode == 0, "see the error of the process above"


def sleep_and_learn(lora: Lora | None, ahead: bool) -> None:
    model = make(torch.bfloat16)
    if lora is not None:
        model = adapted(model.requires_grad_(False), lora, seed=0, where="x").eval()
    engine = VLLMEngine(max_rows=32, memory=0.3, sleep=True, async_scheduling=ahead)
    engine.serve("p", model, [END])
    try:
        answer(engine, ask(5))
        before = torch.cuda.mem_get_info()[0]
        engine.sleep()
        assert torch.cuda.mem_get_info()[0] > before + 2**30
        shake(model, 1)
        engine.publish("p", model.state_dict(), 1)
        requests = ask(20)
        found = answer(engine, requests)
        assert difference(model, requests, found) < ROUGH
        (group,) = engine._groups.values()
        assert group._adapter_arrival.compared is (True if lora else None)
        with pytest.raises(ConfigError, match="only one"):
            VLLMEngine(max_rows=32, memory=0.3, sleep=True).serve("q", model, [END])
    finally:
        engine.close()
