"""Tests of the planned memory per device, compared with sums by hand and with measurements."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfplay.learner.logprobs import most_logits
from selfplay.models.policy import Bases, load_policy
from selfplay.models.policy_settings import Lora
from selfplay.plan.cluster import GB, ClusterSpec, load_cluster
from selfplay.plan.memory import Member, learning, plan_memory, served
from selfplay.plan.model_shape import ModelShape, read_outline
from tests.helpers.builders import save_tiny
from tests.helpers.model_shapes import (
    LLAMA_8B,
    QWEN_05B,
    QWEN_3B,
    QWEN_7B,
    QWEN_15B,
    QWEN_32B,
    QWEN_72B,
)

H100 = load_cluster("gpus_1", [])[0].device


def cluster(devices: int, **settings: object) -> ClusterSpec:
    return ClusterSpec(device=H100, devices=devices, **settings)  # type: ignore[arg-type]


def learned(outline: ModelShape, devices: int, rank: int = 0, **settings: object) -> float:
    """Return the GB per device of learning with micro-batches of 8,192 tokens."""
    member = Member(outline=outline, rank=rank)
    parts = learning({"base": member}, cluster(devices, **settings), micro_batch=8192)
    return sum(parts.values()) / GB


@pytest.mark.parametrize(
    ("outline", "devices", "full", "adapter"),
    [
        (QWEN_05B, 1, 15.19, 6.49),
        (QWEN_05B, 8, 8.77, 5.68),
        (QWEN_15B, 1, 33.47, 9.25),
        (QWEN_15B, 8, 12.64, 6.59),
        (QWEN_3B, 2, 35.90, 10.42),
        (QWEN_7B, 1, 134.99, 23.87),
        (QWEN_7B, 4, 46.78, 14.59),
        (QWEN_7B, 8, 31.55, 12.52),
        (QWEN_32B, 8, 89.82, 26.09),
        (QWEN_72B, 8, 183.33, 46.07),
    ],
)
def test_learning(outline: ModelShape, devices: int, full: float, adapter: float) -> None:
    assert learned(outline, devices) == pytest.approx(full, abs=0.01)
    assert learned(outline, devices, rank=32) == pytest.approx(adapter, abs=0.01)


def test_parts_of_a_7b_on_eight() -> None:
    parts = learning({"base": Member(outline=QWEN_7B)}, cluster(8), micro_batch=8192)
    found = {name: size / GB for name, size in parts.items()}
    expected = {"weights": 3.81, "gradients": 3.81, "optimizer": 7.62, "unsharded": 9.19}
    expected |= {"activations": 1.64, "logits": 2.49, "reserved": 3.0, "reference": 0.0}
    expected |= {"engine": 0.0}
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("tokens", "pieces", "expected"),
    [(16_384, 1024, 33.2), (16_384, 0, 68.4), (32_768, 1024, 41.2), (32_768, 0, 111.5)],
)
def test_logits_of_a_whole_micro_batch(tokens: int, pieces: int, expected: float) -> None:
    layout = cluster(8, logits=pieces)
    parts = learning({"base": Member(outline=QWEN_7B)}, layout, micro_batch=tokens)
    assert sum(parts.values()) / GB == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("outline", "rank", "measured"),
    [(QWEN_05B, 0, 10.9), (QWEN_15B, 0, 29.3), (QWEN_3B, 16, 9.7), (QWEN_7B, 16, 20.0)],
)
def test_measured_peaks_of_an_h100(outline: ModelShape, rank: int, measured: float) -> None:
    # `scripts/gpu_check updates` (docs/gpu.md), in GB: 8 samples of 512 + 1,536 tokens
    layout = cluster(1, checkpointing=True, logits=most_logits("cuda") // outline.vocabulary)
    member = Member(outline=outline, rank=rank, frozen_bytes=2)
    parts = learning({"base": member}, layout, micro_batch=8192, completions=6144)
    planned = sum(parts.values()) - parts["reserved"]
    assert planned / GB == pytest.approx(measured, rel=0.1)


def test_sharding_saves_as_much_memory_as_was_measured() -> None:
    # Llama-3.1-8B, 8 to 128 H100, the same local batch: 82.4 -> 67.0 GiB, 77.0 -> 62.0 GiB.
    saved = (learned(LLAMA_8B, 8) - learned(LLAMA_8B, 128)) * GB / 2**30
    assert saved == pytest.approx(15.2, rel=0.1)


def test_more_devices_need_no_more_memory_each() -> None:
    for rank in (0, 32):
        sizes = [learned(QWEN_7B, devices, rank) for devices in (1, 2, 4, 8, 16, 32, 64)]
        assert sizes == sorted(sizes, reverse=True)


def planned(outline: ModelShape, layout: ClusterSpec, policies: int = 1, rank: int = 0) -> float:
    """Return the GB that are left for the cache."""
    members = {str(n): Member(outline=outline, rank=rank) for n in range(policies)}
    memory = plan_memory(members, layout, micro_batch=8192, completions=0, longest=8192)
    return memory.cache / GB


def test_the_memory_left_for_the_cache() -> None:
    assert planned(QWEN_7B, cluster(8)) == pytest.approx(39.1, abs=0.1)
    assert planned(QWEN_7B, cluster(8, asleep=True)) == pytest.approx(54.4, abs=0.1)
    assert planned(QWEN_7B, cluster(8), policies=2) == pytest.approx(8.7, abs=0.1)
    assert planned(QWEN_7B, cluster(8), policies=4) == 0.0
    for policies, left in ((1, 52.3), (2, 50.2), (4, 46.0)):  # 1.9 less per base
        assert planned(QWEN_7B, cluster(8), policies, rank=32) == pytest.approx(left, abs=0.6)


@pytest.mark.parametrize(
    ("devices", "settings", "weights", "reference"),
    [
        # P = 7.6156e9 numbers of 16 bits, A = 0.0807e9 of 32 bits: 2 P = 15.231, 4 A = 0.323 GB.
        (1, {}, 15.231 + 2 * 0.323, 0),  # both have one base
        (1, {"reference": True}, 15.231 + 2 * 0.323, 0),  # which is the reference too
        (1, {"reference": True, "average": True}, 15.231 + 2 * 0.323, 2 * 0.323),
        (4, {}, 2 * (15.231 + 0.323) / 4, 0),  # a base for each learner
        (4, {"reference": True}, 2 * (15.231 + 0.323) / 4, 15.231 / 4),  # and one for the reference
        (4, {"reference": True, "average": True}, *[2 * (15.231 + 0.323) / 4] * 2),
        (4, {"learns": False}, 0, 0),  # ranks hold no adapter that does not learn
        (4, {"rank": 0, "reference": True}, 2 * 30.462 / 4, 2 * 30.462 / 4),  # 4 P each
    ],
)
def test_learners_on_ranks_do_not_share_the_base_of_their_adapters(
    devices: int, settings: dict[str, Any], weights: float, reference: float
) -> None:
    member = Member(**{"outline": QWEN_7B, "rank": 32, **settings})
    parts = learning({"a": member, "b": member}, cluster(devices), micro_batch=8192)
    found = [parts[name] / GB for name in ("weights", "reference")]
    assert found == pytest.approx([weights, reference], abs=0.002)


@pytest.mark.parametrize(
    ("devices", "first", "second", "weights", "reference"),
    [
        # In one process each model is one base: 15.231 GB, and each adapter has 0.323 GB.
        (1, "one", "one", 15.231 + 2 * 0.323, 0),
        (1, "one", "two", 2 * (15.231 + 0.323), 0),
        # On four ranks each learner has its own base; policies of one model share the reference.
        (4, "one", "one", 2 * (15.231 + 0.323) / 4, 15.231 / 4),
        (4, "one", "two", 2 * (15.231 + 0.323) / 4, 2 * 15.231 / 4),
    ],
)
def test_adapters_share_the_base_of_their_model_and_not_of_its_shape(
    devices: int, first: str, second: str, weights: float, reference: float
) -> None:
    members = {
        str(place): Member(outline=replace(QWEN_7B, model=model), rank=32, reference=True)
        for place, model in enumerate((first, second))
    }
    parts = learning(members, cluster(devices), micro_batch=8192)
    found = [parts[name] / GB for name in ("weights", "reference")]
    assert found == pytest.approx([weights, reference], abs=0.002)
    # The engine has 2 bytes for each number of a base and of an adapter.
    bases = len({first, second})
    assert served(members, cluster(devices)) / GB == pytest.approx(bases * 15.231 + 0.323, abs=0.01)


def test_a_process_loads_as_many_bases_as_the_plan_counts(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    bases: Bases = {}
    members = {}
    for name, model in (("a", "one"), ("b", "two"), ("c", "one")):
        folder = str(tmp_path / model)
        if not Path(folder).exists():
            save_tiny(tmp_path / model, hidden=16, layers=1, heads=2, intermediate=16)
        load_policy(name, bases=bases, model=folder, device="cpu", lora=Lora(rank=2))
        members[name] = Member(outline=read_outline(folder), rank=2, frozen_bytes=4)
    assert len({member.outline for member in members.values()}) == 1
    assert len(bases) == len({member.base for member in members.values()}) == 2


def test_cached_tokens_per_engine() -> None:
    memory = plan_memory(
        {"base": Member(outline=QWEN_7B)},
        cluster(8),
        micro_batch=8192,
        completions=0,
        longest=8192,
    )
    assert memory.fits and memory.cache_tokens == pytest.approx(682e3, rel=0.01)


def test_complaints_name_the_parts_that_do_not_fit() -> None:
    members = {"base": Member(outline=QWEN_7B)}
    memory = plan_memory(members, cluster(1), micro_batch=8192, completions=0, longest=8192)
    assert not memory.fits
    assert "60.9 GB of it optimizer" in memory.complaints[0]
    assert "one sequence of 8192 tokens" in memory.complaints[1]
    offloaded = cluster(8, offload=True, host=32.0)
    memory = plan_memory(members, offloaded, micro_batch=8192, completions=0, longest=8192)
    assert memory.host == pytest.approx(8 * QWEN_7B.parameters)
    assert memory.complaints == ("61 GB are needed in a machine's main memory of 32 GB",)


def test_a_cpu_holds_its_weights_once() -> None:
    layout = cluster(1, precision="float32", same_weights=True, checkpointing=False)
    members = {"base": Member(outline=QWEN_05B)}
    memory = plan_memory(members, layout, micro_batch=1024, completions=0, longest=1024)
    assert memory.learning["unsharded"] == 4 * QWEN_05B.embedding
    assert memory.generating["engine weights"] == 0.0
    state = sum(memory.learning[name] for name in ("weights", "gradients", "optimizer"))
    assert state == 16 * QWEN_05B.parameters
    referred = {"base": replace(members["base"], reference=True)}
    memory = plan_memory(referred, layout, micro_batch=1024, completions=0, longest=1024)
    assert memory.learning["reference"] == 4 * QWEN_05B.parameters


@pytest.mark.parametrize("rank", [0, 32])
@pytest.mark.parametrize("devices", [1, 4])
def test_teachers_are_held_once_each_in_the_type_of_the_passes(devices: int, rank: int) -> None:
    taught = Member(
        outline=QWEN_05B, rank=rank, reference=True, teachers=(QWEN_7B, QWEN_3B), frozen_bytes=2
    )
    other = replace(taught, teachers=(QWEN_3B,))
    for members in ({"a": taught}, {"a": taught, "b": other}):
        parts = learning(members, cluster(devices), micro_batch=8192)
        both = QWEN_7B.parameters + QWEN_3B.parameters
        assert parts["reference"] == 2 * both / devices
