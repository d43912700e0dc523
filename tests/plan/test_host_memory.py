"""Tests of the planned main memory of a machine, compared with sums made by hand."""

from dataclasses import replace
from typing import Any

import pytest

from selfplay.plan.cluster import GB, ClusterSpec, load_cluster
from selfplay.plan.host_memory import VERSIONS
from selfplay.plan.memory import Member, plan_memory
from selfplay.plan.model_shape import ModelShape
from selfplay.runtime import placement
from tests.helpers.model_shapes import QWEN_7B, QWEN_32B

H100 = load_cluster("gpus_1", [])[0].device
SPLIT = ClusterSpec(device=H100, devices=8, rollout=4, copies=True, driver=True)
PAIRS = ClusterSpec(device=H100, devices=8, copies=True, asleep=True, driver=True)
FULL = Member(outline=QWEN_7B, frozen_bytes=4)


def held(cluster: ClusterSpec, *members: Member, background: bool = False) -> dict[str, float]:
    """Return the GB of main memory by component."""
    planned = plan_memory(
        {str(place): member for place, member in enumerate(members)},
        cluster,
        micro_batch=8192,
        completions=0,
        longest=8192,
        background=background,
    )
    assert planned.host == pytest.approx(sum(planned.host_parts.values()))
    return {name: size / GB for name, size in planned.host_parts.items()}


# P = 7.6156e9 numbers, so that 4 P = 30.463 GB and 2 P = 15.231 GB.
@pytest.mark.parametrize(
    ("cluster", "members", "background", "expected"),
    [
        # The first rank gathers 4 P; the store has two versions of 2 P, and a copy of the 4 P.
        (SPLIT, [FULL], False, {"driver": 30.463, "gathered": 30.463, "object store": 60.925}),
        # The store has the versions of both policies; one policy at a time is gathered.
        (
            SPLIT,
            [FULL, FULL],
            False,
            {"driver": 60.925, "gathered": 30.463, "object store": 91.387},
        ),
        # A policy that does not learn is in the driver and is never sent.
        (
            SPLIT,
            [FULL, replace(FULL, learns=False, frozen_bytes=2)],
            False,
            {"driver": 45.694, "gathered": 30.463, "object store": 60.925},
        ),
        # With references the first rank loads 4 P + 4 P of each, while the store has 2 P of each.
        (
            SPLIT,
            [replace(FULL, reference=True)] * 2,
            False,
            {"driver": 60.925, "loading": 121.850, "object store": 30.463},
        ),
        # A teacher of 32B that both have is loaded once, with 2 bytes per number.
        (
            SPLIT,
            [replace(FULL, reference=True, teachers=(QWEN_32B,))] * 2,
            False,
            {"driver": 60.925, "loading": 126.453, "object store": 30.463},
        ),
        # A copy of a checkpoint in the driver (4 P) and in the ranks (8 P), while 2 P are sent.
        (
            SPLIT,
            [FULL],
            True,
            {
                "driver": 30.463,
                "gathered": 15.231,
                "object store": 30.463,
                "copied checkpoint": 91.387,
            },
        ),
        # The ranks rest with 12 P, and the workers have 2 P on each of 8 devices.
        (
            PAIRS,
            [FULL],
            False,
            {
                "driver": 30.463,
                "engines' copies": 121.850,
                "at rest": 91.387,
                "object store": 30.463,
            },
        ),
        # On two machines of 4 devices, one has half of the copies and of the state.
        (
            replace(PAIRS, node=4),
            [FULL],
            False,
            {"driver": 30.463, "engines' copies": 60.925, "gathered": 30.463}
            | {"object store": 60.925},
        ),
        (replace(SPLIT, driver=False), [FULL], False, {}),
        # A thread that writes checkpoints copies 12 P in any layout, and an average 4 P more.
        (ClusterSpec(device=H100), [FULL], True, {"copied checkpoint": 91.387}),
        (
            ClusterSpec(device=H100),
            [replace(FULL, reference=True, average=True)],
            True,
            {"copied checkpoint": 121.850},
        ),
    ],
)
def test_main_memory_at_its_peak(
    cluster: ClusterSpec, members: list[Member], background: bool, expected: dict[str, float]
) -> None:
    assert held(cluster, *members, background=background) == pytest.approx(expected, abs=0.003)


def adapter(model: str, **settings: Any) -> Member:
    shape: ModelShape = replace(QWEN_7B, model=model)
    return Member(**{"outline": shape, "rank": 32, "frozen_bytes": 2, **settings})


@pytest.mark.parametrize(
    ("models", "driver"),
    # A base has 2 bytes of each number: 15.231 GB; an adapter of 0.0807e9 numbers 0.323 GB.
    [(("one", "one"), 15.231 + 2 * 0.323), (("one", "two"), 2 * (15.231 + 0.323))],
)
def test_a_base_of_adapters_is_once_in_each_process(models: tuple[str, str], driver: float) -> None:
    found = held(SPLIT, *map(adapter, models))
    # While the first rank loads, it has as much as the driver; the store has one version of both.
    expected = {"driver": driver, "loading": driver, "object store": 2 * 0.323}
    assert found == pytest.approx(expected, abs=0.003)


def test_a_sleeping_engine_keeps_the_base_of_adapters() -> None:
    """vLLM keeps 15.231 GB of a base and 0.161 GB of an adapter, in 16 bits, for each engine."""
    alone = ClusterSpec(device=H100, in_turns=True, sleeps=True)
    one = {"engines asleep": 15.231 + 0.161}
    assert held(alone, adapter("one")) == pytest.approx(one, abs=0.003)
    assert held(alone, FULL) == {}, "whole weights are loaded again"
    assert held(replace(alone, sleeps=False), adapter("one")) == {}
    pairs = held(replace(PAIRS, sleeps=True), adapter("one"), adapter("one"))
    assert pairs["engines asleep"] == pytest.approx(8 * (15.231 + 2 * 0.161), abs=0.01)


def test_one_rank_loads_one_model_after_another_onto_its_gpu() -> None:
    many = replace(SPLIT, devices=6, rollout=4)
    assert held(many, *map(adapter, "ab"))["loading"] == pytest.approx(31.108, abs=0.003)
    alone = replace(SPLIT, devices=5, rollout=4)
    assert held(alone, *map(adapter, "ab"))["loading"] == pytest.approx(15.231, abs=0.003)


def test_a_machine_with_too_little_is_refused() -> None:
    planned = {"base": FULL}, replace(SPLIT, host=100.0)
    found = plan_memory(*planned, micro_batch=8192, completions=0, longest=8192)
    # 4 P + 4 P + 8 P are 121.8 GB.
    assert found.complaints == ("122 GB are needed in a machine's main memory of 100 GB",)


def test_the_store_has_as_many_versions_as_the_runtime_says() -> None:
    assert VERSIONS == placement.VERSIONS
