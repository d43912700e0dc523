"""Tests of planned times of updates, compared with measurements on an H100 (docs/gpu.md)."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from selfplay.learner.logprobs import most_logits
from selfplay.plan import traffic
from selfplay.plan.cluster import ClusterSpec
from selfplay.plan.memory import Member
from selfplay.plan.model_shape import ModelShape
from selfplay.plan.step_time import learning
from selfplay.plan.workload import Lesson
from tests.helpers.model_shapes import QWEN3_06B, QWEN_05B, QWEN_3B, QWEN_7B, QWEN_15B
from tests.helpers.plan_workload import H100, cluster
from tests.helpers.repository import ROOT


def lesson(count: int, prompt: int, length: int) -> Lesson:
    tokens = float(count * length)
    return Lesson(
        samples=count,
        tokens=tokens,
        distinct=tokens,
        completions=float(count * (length - prompt)),
        squares=float(count * length**2),
    )


def on_h100(outline: ModelShape) -> ClusterSpec:
    return cluster(checkpointing=True, logits=most_logits("cuda") // outline.vocabulary)


@pytest.mark.parametrize(
    ("outline", "rank", "count", "prompt", "length", "micro_batch", "measured"),
    [
        # `scripts/gpu_check updates`, in seconds
        (QWEN_05B, 0, 8, 512, 2048, 8192, 0.364),
        (QWEN_15B, 0, 8, 512, 2048, 8192, 0.716),
        (QWEN_3B, 16, 8, 512, 2048, 8192, 1.15),
        (QWEN_7B, 16, 8, 512, 2048, 8192, 1.88),
        # `scripts/gpu_check throughput`, from tokens per second
        (QWEN3_06B, 0, 4, 16, 16_384, 16_384, 4 * 16_384 / 20_389),
        (QWEN3_06B, 0, 32, 16, 2048, 16_384, 32 * 2048 / 27_478),
        (QWEN3_06B, 16, 4, 16, 16_384, 16_384, 4 * 16_384 / 21_743),
        (QWEN3_06B, 16, 32, 16, 2048, 16_384, 32 * 2048 / 29_305),
    ],
)
def test_measured_updates_of_an_h100(
    outline: ModelShape,
    rank: int,
    count: int,
    prompt: int,
    length: int,
    micro_batch: int,
    measured: float,
) -> None:
    # The two fractions of the peaks were fitted to these eight times, so this is no prediction.
    found = learning(
        lesson(count, prompt, length),
        Member(outline=outline, rank=rank, frozen_bytes=2),
        on_h100(outline),
        micro_batch=micro_batch,
    )
    assert found.train + found.optimizer == pytest.approx(measured, rel=0.1)


def test_each_epoch_takes_as_long_as_the_first_one() -> None:
    once = replace(lesson(8, 512, 2048), reference=True)
    found, twice = (
        learning(given, Member(outline=QWEN_05B), on_h100(QWEN_05B), micro_batch=8192)
        for given in (once, replace(once, epochs=2, updates=2))
    )
    assert twice.train == pytest.approx(2 * found.train)
    assert twice.optimizer == pytest.approx(2 * found.optimizer)
    assert twice.score == found.score > 0


def test_small_models_spend_more_of_their_time_on_memory() -> None:
    given = lesson(8, 512, 2048)

    def fraction(outline: ModelShape) -> float:
        layout = on_h100(outline)
        fast = replace(H100, rates=replace(H100.rates, stream=(1e9, 1e9, 1e9)))
        whole, products = (
            learning(given, Member(outline=outline), each, micro_batch=8192).train
            for each in (layout, replace(layout, device=fast))
        )
        return 1 - products / whole

    assert 0.55 < fraction(QWEN_05B) < 0.70
    assert 0.25 < fraction(QWEN_7B) < 0.45


def test_traffic_by_hand() -> None:
    outline = ModelShape(
        layers=2,
        hidden=10,
        heads=2,
        kv_heads=1,
        head_dim=4,
        intermediate=20,
        vocabulary=100,
    )
    # 2 layers of 106 x 10 + 36 x 8 + 36 x 4 + 10 x 20 bytes per token.
    forward = 2 * (1060 + 288 + 144 + 200)
    assert traffic.scoring(outline, 0, 3, 0) == 3 * forward
    assert traffic.scoring(outline, 0, 0, 3) == 3 * 8 * 100
    backward = 2 * (2860 + 480 + 248 + 360)
    sizes = {"tokens": 3, "head": 0, "passes": 1, "logits": 0}
    once = traffic.training(outline, 0, **sizes, checkpointing=False)
    head = 12 * 1000  # the gradient of the head is added once in a pass
    weights = 2 * outline.layer_parameters
    assert once == 3 * (forward + backward) + (6 + 18) * weights + head
    again = traffic.training(outline, 0, **sizes, checkpointing=True)
    assert again - once == 3 * forward + 6 * weights
    # Logits of 8 tokens in pieces of 4: the softmax is computed twice.
    pieces = traffic.training(outline, 16, 0, 8, passes=1, logits=4, checkpointing=True)
    assert pieces == 8 * 100 * (2 * 8 + 24) + 2 * 12 * 1000


def test_a_cpu_has_only_operations() -> None:
    slow = replace(H100.rates, stream=(1e-9, 1e-9, 1e-9))
    layout = on_h100(QWEN_05B)
    given, member = lesson(8, 512, 2048), Member(outline=QWEN_05B)
    found = [
        learning(given, member, replace(layout, device=device), micro_batch=8192)
        for device in (replace(H100, kind="cpu"), replace(H100, kind="cpu", rates=slow))
    ]
    assert found[0] == found[1]
    operations = 4 * QWEN_05B.forward(given.tokens, given.squares, 0.0)
    operations += 3 * QWEN_05B.forward(0.0, 0.0, given.completions)
    assert found[0].train == pytest.approx(operations / (0.7 * 989e12))


@pytest.mark.slow
def test_the_bytes_are_those_of_fake_tensors() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts/check_traffic.py", "--json"],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
    )
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert len(rows) == 12 and ran.returncode == 0, ran.stdout + ran.stderr
    for name, counted, plan in rows:
        assert plan == pytest.approx(counted, rel=0.1), name
