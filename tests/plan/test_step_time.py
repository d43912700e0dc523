"""Tests of the seconds of each phase: sums by hand, closed forms, and published step times."""

from dataclasses import replace

import pytest

from selfplay.plan.cluster import FAST, SLOW, load_cluster
from selfplay.plan.memory import Member
from selfplay.plan.model_shape import ModelShape
from selfplay.plan.step_time import decode_step, learning, makespan
from tests.helpers.model_shapes import LLAMA_8B, QWEN_05B, QWEN_7B, QWEN_32B, QWEN_72B
from tests.helpers.plan_workload import H100, cluster, predicted, workload

H20 = load_cluster("gpus_1", ["device=h20"])[0].device


def test_decoding_a_7b_on_one_device() -> None:
    step = decode_step(QWEN_7B, cluster())
    found = [1000 * step(batch, 2000 * batch) for batch in (1, 8, 32, 64, 128, 256, 512)]
    assert found == pytest.approx([7.6, 8.0, 9.6, 11.6, 15.7, 23.9, 40.3], rel=0.01)


@pytest.mark.parametrize(
    ("outline", "tensor", "batch", "context", "published"),
    [
        (QWEN_72B, 2, 1, 1000, 1 / 30.9e-3),
        (QWEN_7B, 1, 64, 1500, 6300.0),
        (LLAMA_8B, 1, 256, 800, 12500.0),
        (QWEN_32B, 1, 32, 1500, 1200.0),
    ],
)
def test_published_decoding_speeds(
    outline: ModelShape, tensor: int, batch: int, context: float, published: float
) -> None:
    step = decode_step(outline, cluster(tensor, tensor=tensor))
    assert 0.65 < batch / step(batch, batch * context) / published < 1.35


@pytest.mark.parametrize(
    ("outline", "devices", "tensor", "samples", "mean", "published", "band"),
    [
        (LLAMA_8B, 16, 1, 2048, 1060, 97.7, (0.65, 1.35)),
        (QWEN_32B, 32, 4, 2048, 3206, 393.0, (0.65, 1.35)),
    ],
)
def test_published_steps(
    outline: ModelShape,
    devices: int,
    tensor: int,
    samples: int,
    mean: float,
    published: float,
    band: tuple[float, float],
) -> None:
    asked = workload(samples, mean, 4 * int(mean), cv=0.8, prompt=150, passes=1)
    layout = cluster(devices, tensor=tensor, asleep=True)
    step = predicted(asked, outline, layout).step()
    assert band[0] < step / published < band[1]


def test_the_long_tail_of_a_slow_card() -> None:
    # For one sequence of 28,672 tokens, 177.9 s of generation were reported.
    seconds, small = makespan([28_672.0], 500, 1, decode_step(QWEN_7B, cluster(device=H20)))
    assert seconds == small and 0.65 < seconds / 177.9 < 1.35


def test_makespan_in_closed_form() -> None:
    def step(batch: float, context: float) -> float:
        return 0.001 + 0.0001 * batch + 1e-6 * context

    # 12 of 10 tokens each in turns of 4: three equal rounds.
    one = 10 * (step(4, 400) + step(4, 440)) / 2
    assert makespan([10.0] * 12, 100, 4, step)[0] == pytest.approx(3 * one)
    # 3 and 5 tokens side by side: three steps of two, then two of one.
    both = 3 * (step(2, 200) + step(2, 206)) / 2
    rest = 2 * (step(1, 103) + step(1, 105)) / 2
    assert makespan([3.0, 5.0], 100, 8, step) == pytest.approx((both + rest, both + rest))


@pytest.mark.parametrize(
    ("mean", "score", "train", "decode"), [(1500, 64, 139, 96), (8096, 246, 535, 670)]
)
def test_a_colocated_step_of_3072_samples(
    mean: int, score: float, train: float, decode: float
) -> None:
    asked = workload(3072, mean, 8096, cv=1.0 if mean < 8096 else 0.0, prompt=1000, passes=2)
    seconds = predicted(asked, QWEN_7B, cluster(8)).seconds()
    assert seconds["score"] == pytest.approx(score, rel=0.02)
    assert seconds["train"] == pytest.approx(train, rel=0.02)
    assert seconds["decode"] == pytest.approx(decode, rel=0.10)
    assert seconds["exchange"] == 0.0  # it overlaps with computation


def test_training_is_three_forward_passes_or_four() -> None:
    lesson = workload(64, 1000, 1000, cv=0.0).lessons["base"]
    # A GPU also has memory traffic (test_update_time.py).
    cpu = replace(H100, kind="cpu")
    plain = cluster(checkpointing=False, same_weights=True, device=cpu)
    member = Member(outline=QWEN_7B)
    forward = replace(lesson, reference=True)
    once = learning(forward, member, plain, micro_batch=1e9)
    assert once.train / once.score == pytest.approx(3.0)
    again = learning(forward, member, replace(plain, checkpointing=True), micro_batch=1e9)
    assert 3.9 < again.train / once.score < 4.0  # the head is not computed again
    adapted = learning(forward, replace(member, rank=32), plain, micro_batch=1e9)
    assert 2.0 < adapted.train / once.score < 2.1


def test_a_teacher_takes_the_time_of_its_own_size() -> None:
    lesson = replace(workload(64, 1000, 1000, cv=0.0).lessons["base"], reference=True)
    plain = cluster(checkpointing=False, same_weights=True, device=replace(H100, kind="cpu"))

    def scored(*teachers: ModelShape, **settings: bool) -> float:
        member = Member(outline=QWEN_05B, reference=True, teachers=teachers)
        return learning(replace(lesson, **settings), member, plain, micro_batch=1e9).score

    own = scored()
    large = learning(lesson, Member(outline=QWEN_7B, reference=True), plain, micro_batch=1e9).score
    assert scored(QWEN_7B) == pytest.approx(large) and large > 5 * own
    # Each of two teachers reads half of the samples.
    assert scored(QWEN_7B, QWEN_05B) == pytest.approx((large + own) / 2)
    # A correction is computed by the policy itself.
    assert scored(QWEN_7B, correction=True) == pytest.approx(large + own)
    assert scored(QWEN_7B, reference=False, correction=True) == pytest.approx(own)


def test_short_sequences_cost_six_operations_a_parameter() -> None:
    forward = QWEN_7B.forward(1000 * 16, 1000 * 16**2)
    assert 3 * forward == pytest.approx(6 * QWEN_7B.matrices * 16_000, rel=0.01)


def test_shared_prefixes_and_more_devices_save_time() -> None:
    lesson = workload(512, 500, 500, cv=0.0).lessons["base"]
    lesson = replace(lesson, completions=0.0)  # logits are not shared
    half = replace(lesson, distinct=lesson.tokens / 2)
    member = Member(outline=QWEN_7B)
    plain, shared = (
        learning(each, member, cluster(8), micro_batch=1e5).train for each in (lesson, half)
    )
    assert plain / shared == pytest.approx(1.7, rel=0.05)
    times = [
        learning(lesson, member, cluster(count), micro_batch=8192).train for count in (8, 16, 32)
    ]
    assert times[0] / times[1] == pytest.approx(2.0) and times[1] / times[2] == pytest.approx(2.0)


def test_slow_links_add_time() -> None:
    lesson = workload(64, 500, 500, cv=0.0).lessons["base"]
    member = Member(outline=QWEN_7B)
    slow = replace(H100, link=20.0)
    found = learning(lesson, member, cluster(8, device=slow), micro_batch=16_384)
    # Two gathers of 2 P 7/8 per pass and a reduction of 4 P 7/8, at 20 GB/s.
    size = QWEN_7B.parameters * 7 / 8
    assert found.communication == pytest.approx((2 * 2 * size + 4 * size) / 20e9)
    assert found.exposed == pytest.approx(found.communication - 0.8 * found.train)


def test_copies_add_their_gradients_once_in_an_optimizer_step() -> None:
    lesson = workload(64, 500, 500, cv=0.0).lessons["base"]
    member = Member(outline=QWEN_7B)
    layout = cluster(16, shards=8, network=2.0)
    found = [
        learning(replace(lesson, updates=updates), member, layout, micro_batch=tokens).communication
        for updates, tokens in ((1, 1024), (2, 1024))
    ]
    # Four passes; a part of a gradient has 4 P / 8 bytes.
    passes = 4 * (2 * 2 + 4) * QWEN_7B.parameters * 7 / 8 / layout.collective
    copies = 4 * QWEN_7B.parameters / 8 / 2e9
    assert found == pytest.approx([passes + copies, passes + 2 * copies])


def test_slow_likely_fast_are_in_order() -> None:
    prediction = predicted(workload(512, 1000, 4000), QWEN_7B, cluster(8))
    slow, likely, fast = prediction.step(SLOW), prediction.step(), prediction.step(FAST)
    assert slow > likely > fast


def test_more_lag_is_never_slower_and_the_split_matters_more() -> None:
    asked = workload(8192, 8000, 32_768, cv=0.9, passes=1)
    steps = {
        (rollout, lag): predicted(
            asked, QWEN_32B, cluster(512, tensor=4, rollout=rollout, lag=lag, overhead=1.0)
        ).step()
        for rollout in (384, 288)
        for lag in (0, 1, 2)
    }
    for rollout in (384, 288):
        assert steps[rollout, 0] > steps[rollout, 1] >= steps[rollout, 2]
    assert steps[288, 1] < 0.7 * steps[384, 1]


def test_the_bottleneck_has_a_reason() -> None:
    tail = predicted(workload(192, 1500, 8096), QWEN_7B, cluster(8))
    assert tail.bottleneck()[1].startswith("the longest completions")
    full = predicted(workload(3072, 8096, 8096, cv=0.0, prompt=1000), QWEN_7B, cluster(8))
    assert full.bottleneck()[1].startswith("memory of the cache")
    learner = predicted(workload(3072, 1000, 2000, passes=2), QWEN_7B, cluster(8))
    assert learner.bottleneck() == ("learning", "operations of the learner")
    lines = [line for line, _ in learner.advice()]
    assert any("no reference" in line for line in lines)
    for _, other in learner.advice():
        assert other.step() < learner.step()
