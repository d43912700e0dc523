"""Tests of starts of several engines: compiled kernels, process state, bases of adapters."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from selfplay.engines.vllm.compat import import_vllm, restored_globals
from selfplay.engines.vllm.config_folder import config_folder
from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.engines.vllm.memory_share import SHARED
from selfplay.engines.vllm.served_policies import engine_key
from selfplay.errors import ConfigError
from selfplay.models.lora import adapted, frozen_copy
from selfplay.models.policy_settings import Lora
from tests.helpers.engine_requests import END
from tests.helpers.vllm_engine import make

pytestmark = pytest.mark.vllm


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path))
    yield tmp_path


def test_models_of_one_shape_have_one_folder() -> None:
    first, second, other = make(1), make(2), make(1)
    other.config.rms_norm_eps = 1e-3
    second.config._name_or_path = "elsewhere"
    assert config_folder(first) == config_folder(second) != config_folder(other)
    read = AutoConfig.from_pretrained(config_folder(first))
    assert read.hidden_size == first.config.hidden_size
    assert read.architectures == [type(first).__name__]


def test_two_starts_have_the_same_key_of_compiled_kernels() -> None:
    found = []
    for seed in (1, 2):
        engine = VLLMEngine(max_rows=8)
        engine.serve("p", make(seed), [END])
        (group,) = engine._groups.values()
        found.append(group.host.engine.vllm_config.compute_hash())
        engine.close()
    assert found[0] == found[1]


def test_a_start_leaves_the_process_as_it_was() -> None:
    """When a new engine starts, vLLM deletes the CUDA graphs of all engines in its set."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    class Graphs:
        """The graphs of an engine of this process."""

        deleted = False

        def clear_graphs(self) -> None:
            self.deleted = True

    other, threads, state = Graphs(), torch.get_num_threads(), random.getstate()
    CUDAGraphWrapper._all_instances.add(other)
    with restored_globals():
        torch.set_num_threads(threads + 1)
        random.seed(1)
        CUDAGraphWrapper.clear_all_graphs()
    assert not other.deleted
    assert other in CUDAGraphWrapper._all_instances
    CUDAGraphWrapper._all_instances.discard(other)
    assert torch.get_num_threads() == threads
    assert random.getstate() == state


def test_an_engine_on_a_cpu_with_its_own_device_reads_no_gpu() -> None:
    """A worker that `runtime.colocated` pairs with a learner rank on a CPU has such an engine."""
    engine = VLLMEngine(max_rows=8, cache=0.1)
    engine.has_own_gpu = True
    try:
        engine.serve("p", make(1), [END])
        (group,) = engine._groups.values()
        assert group.host.stream is None
        assert group.host.engine.vllm_config.cache_config.gpu_memory_utilization == SHARED
    finally:
        engine.close()


def test_adapters_in_float32_are_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, vLLM's kernels of adapters compute in 16 bits."""
    import_vllm()
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    model = adapted(make(1).requires_grad_(False), Lora(rank=4), seed=0, where="p")
    torch.nn.Module.to(model, device="meta")
    engine = VLLMEngine(max_rows=8, dtype="float32")
    with pytest.raises(ConfigError, match=r"engine\.dtype=bfloat16 or auto"):
        engine.serve("p", model, [END])


def test_an_engine_serves_models_that_differ_in_tokens_and_limits_alone() -> None:
    first = make(1)
    for key, value, shared in [
        ("eos_token_id", 5, True),
        ("_name_or_path", "elsewhere", True),
        ("max_position_embeddings", 64, True),
        ("use_mrope", False, True),
        ("rms_norm_eps", 1e-3, False),
        ("sliding_window", 16, False),
        ("tie_word_embeddings", not first.config.tie_word_embeddings, False),
    ]:
        other = make(1)
        setattr(other.config, key, value)
        assert (engine_key(other) == engine_key(first)) is shared, key
    scaled = [make(1), make(1)]
    for each, positions in zip(scaled, (64, 128), strict=True):
        each.config.rope_parameters = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
        each.config.max_position_embeddings = positions
    assert len({engine_key(each) for each in [first, *scaled]}) == 3  # yarn uses the positions


def test_adapters_share_an_engine_after_their_base_has_moved() -> None:
    """A learner that was offloaded gets other memory when it returns."""
    model = adapted(make(1).requires_grad_(False), Lora(rank=4), seed=0, where="p").eval()
    before = engine_key(model)
    weight = model.get_input_embeddings().weight
    weight.data = weight.data.clone()
    assert engine_key(frozen_copy(model)) == engine_key(model) == before
