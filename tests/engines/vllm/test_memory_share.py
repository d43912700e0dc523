"""Tests of the fraction of GPU memory that an engine takes if the config does not set it."""

from typing import Any

import pytest
import torch

from selfplay.engines.vllm.compat import failure_reason
from selfplay.engines.vllm.core import CoreSettings, EngineCore
from selfplay.engines.vllm.memory_share import default_memory
from selfplay.models.tiny import build_model

ALL: dict[str, Any] = dict.fromkeys(("max_rows", "prefill_tokens", "adapters"), 8)


@pytest.mark.parametrize(
    ("own_gpu", "free", "wanted"),
    [(False, 80, 0.4), (True, 80, 0.9), (True, 64, 0.7), (True, 4, 0.1)],
)
def test_the_fraction_is_smaller_on_the_gpu_of_a_learner(
    monkeypatch: pytest.MonkeyPatch, own_gpu: bool, free: int, wanted: float
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80))
    assert default_memory(own_gpu) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("cache", "memory", "wanted"), [(None, None, 0.4), (4.0, None, 0.01), (4.0, 0.3, 0.3)]
)
def test_with_a_cache_of_a_given_size_the_fraction_is_small(
    cache: float | None, memory: float | None, wanted: float
) -> None:
    """vLLM makes such a cache at any fraction, but does not start if less memory is free."""
    core = object.__new__(EngineCore)
    core.settings = CoreSettings(
        **ALL, max_length=64, memory=memory, cache=cache, eager=True, sleep=False
    )
    core.on_cpu, core.dtype, core._own_gpu = False, torch.float32, False
    made = core._arguments(build_model(330, seed=0, hidden=32, layers=1, heads=2), None)
    assert made["gpu_memory_utilization"] == wanted
    assert made["kv_cache_memory_bytes"] == (None if cache is None else 4 * 2**30)


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("Free memory on device cuda:0 (20.25/79.18 GiB) on startup is less than ...", "memory"),
        ("Error in memory profiling. Initial free memory 77.45 GiB, current ...", "cache"),
    ],
)
def test_memory_that_others_use_is_an_error_with_a_key(said: str, key: str) -> None:
    reason = failure_reason(AssertionError(said))
    assert f"engine.{key}" in reason and "engine=transformers" not in reason
