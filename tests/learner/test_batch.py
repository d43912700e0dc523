"""Tests of micro-batches of padded rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from selfplay.learner import batch as batches
from selfplay.learner.batch import Batch, alone, cut, named, pad
from selfplay.types import Sample
from tests.helpers.builders import llama, sample

SAMPLES = [
    sample([1, 2, 3, 4, 5], [6, 7], 1.0),
    sample([8], [9, 10, 11], (0.1, 0.2, 0.3), loss_mask=(0, 1, 1), temperature=0.5),
    sample([12, 13], [14], -1.0, logprobs=(-0.25,)),
]


def plain(samples: Sequence[Sample]) -> Batch:
    return pad([alone(one) for one in samples])


def test_rows_are_padded_on_the_right_and_end_before_the_last_trainable_token() -> None:
    batch = plain([*SAMPLES, sample([1, 2], [3, 4, 5], 1.0, loss_mask=(1, 0, 0))])
    assert batch.ids.tolist() == [
        [1, 2, 3, 4, 5, 6],
        [8, 9, 10, 0, 0, 0],
        [12, 13, 0, 0, 0, 0],
        [1, 2, 0, 0, 0, 0],
    ]
    assert batch.ends is None and batch.reads is None
    assert batch.places.tolist() == [4, 5, 6 + 1, 6 + 2, 12 + 1, 18 + 1]
    assert batch.targets.tolist() == [6, 7, 10, 11, 14, 3]
    assert batch.temperature.tolist() == [1, 1, 0.5, 0.5, 1, 1]
    assert batch.mask.tolist() == [[1, 1, 0], [0, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert batch.advantages[1].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert batch.advantages[0].tolist() == [1, 1, 0]
    assert batch.old_logprobs[2].tolist() == [-0.25, 0, 0]


def test_values_go_to_the_samples_that_read_them() -> None:
    values = torch.arange(1.0, 6.0, requires_grad=True)
    found = plain(SAMPLES).scatter(values, torch.full((3, 3), -1.0))
    assert found.tolist() == [[1, 2, -1], [-1, 3, 4], [5, -1, -1]]
    (found * torch.tensor([[1.0, 2, 9], [9, 3, 4], [5, 9, 9]])).sum().backward()
    assert values.grad is not None and values.grad.tolist() == [1, 2, 3, 4, 5]


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=24, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_padding_changes_no_logits(make: Callable[[], PreTrainedModel], attention: str) -> None:
    model = make().eval()
    model.set_attn_implementation(attention)

    def logits(batch: Batch) -> torch.Tensor:
        return model(input_ids=batch.ids).logits.flatten(0, 1)[batch.places]

    expected = torch.cat([logits(plain([one])) for one in SAMPLES])
    assert torch.allclose(logits(plain(SAMPLES)), expected, atol=1e-5)


def test_micro_batches_hold_every_sample_once_within_the_limit() -> None:
    samples = [sample([1] * (1 + n % 7), [2] * (1 + n % 5), float(n)) for n in range(40)]
    rows = [alone(one) for one in samples]
    for limit in (1, 12, 50, 10_000):
        found = list(map(pad, cut(rows, max_tokens=limit)))
        held = [one for batch in found for one in batch.samples]
        assert sorted(s.advantage for s in held) == [float(n) for n in range(40)]
        for batch in found:
            assert batch.ids.numel() <= limit or len(batch.samples) == 1
    assert len(list(map(pad, cut(rows, max_tokens=10_000)))) == 1
    assert list(map(pad, cut([], max_tokens=5))) == []


def test_rows_of_different_widths_are_padded_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PADDING", 20)
    rows = [alone(sample([1] * width, [2], 1.0)) for width in [40] * 9 + [3] * 9 + [2]]
    widths = [batch.ids.shape for batch in map(pad, cut(rows, max_tokens=10_000))]
    assert widths == [(9, 40), (10, 3)]


def test_an_example_of_a_warm_start_is_named_by_its_place() -> None:
    turn = replace(SAMPLES[0].turn, agent="")
    example = replace(SAMPLES[0], turn=turn, group="chats.jsonl, line 3")
    assert named(example) == "chats.jsonl, line 3"
    assert named(SAMPLES[0]) == "sample 1.0.0/0/solver_0"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (sample([], [1], 1.0), "no prompt"),
        (sample([1], [1, 2], 1.0, logprobs=(-1.0,)), "2 completion tokens but 1 logprobs"),
        (sample([1], [1, 2], 1.0, loss_mask=(1,)), "1 loss_mask"),
        (sample([1], [1, 2], (1.0, 2.0, 3.0)), "3 advantage"),
    ],
)
def test_a_sample_that_cannot_be_a_row_is_named(broken: Sample, message: str) -> None:
    with pytest.raises(ValueError, match=f"sample 1.0.0/0/solver_0.*{message}"):
        plain([SAMPLES[0], broken])
