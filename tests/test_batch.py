"""Samples as padded rows."""

from collections.abc import Callable

import pytest
import torch
from building import llama, sample
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from selfplay.learner.batch import Batch, micro_batches, pad

SAMPLES = [
    sample([1, 2, 3, 4, 5], [6, 7], 1.0),
    sample([8], [9, 10, 11], (0.1, 0.2, 0.3), trainable=(0, 1, 1), temperature=0.5),
    sample([12, 13], [14], -1.0, logprobs=(-0.25,)),
]


def test_prompts_are_padded_on_the_left_and_completions_on_the_right() -> None:
    batch = pad(SAMPLES)
    assert batch.ids.tolist() == [
        [1, 2, 3, 4, 5, 6, 7, 0],
        [0, 0, 0, 0, 8, 9, 10, 11],
        [0, 0, 0, 12, 13, 14, 0, 0],
    ]
    assert batch.attention.tolist() == (batch.ids > 0).long().tolist()
    assert batch.positions[1].tolist() == [0, 0, 0, 0, 0, 1, 2, 3]
    assert batch.targets.tolist() == [[6, 7, 0], [9, 10, 11], [14, 0, 0]]
    assert batch.mask.tolist() == [[1, 1, 0], [0, 1, 1], [1, 0, 0]]
    assert batch.advantages[1].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert batch.advantages[0].tolist() == [1, 1, 0]
    assert batch.old_logprobs[2].tolist() == [-0.25, 0, 0]
    assert batch.temperature.flatten().tolist() == [1, 0.5, 1]


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
        out = model(
            input_ids=batch.ids, attention_mask=batch.attention, position_ids=batch.positions
        )
        return out.logits[:, -batch.completions - 1 : -1]

    padded = logits(pad(SAMPLES))
    for row, one in enumerate(SAMPLES):
        count = len(one.turn.completion_ids)
        assert torch.allclose(padded[row, :count], logits(pad([one]))[0], atol=1e-5)


def test_micro_batches_hold_every_sample_once_within_the_limit() -> None:
    samples = [sample([1] * (1 + n % 7), [2] * (1 + n % 5), float(n)) for n in range(40)]
    for limit in (1, 12, 50, 10_000):
        batches = list(micro_batches(samples, max_tokens=limit))
        held = [one for batch in batches for one in batch.samples]
        assert sorted(s.advantage for s in held) == [float(n) for n in range(40)]
        for batch in batches:
            assert batch.ids.numel() <= limit or len(batch.samples) == 1
    assert len(list(micro_batches(samples, max_tokens=10_000))) == 1
    assert list(micro_batches([], max_tokens=5)) == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (sample([], [1], 1.0), "no prompt"),
        (sample([1], [1, 2], 1.0, logprobs=(-1.0,)), "2 completion tokens but 1 logprobs"),
        (sample([1], [1, 2], 1.0, trainable=(1,)), "1 trainable"),
        (sample([1], [1, 2], (1.0, 2.0, 3.0)), "3 advantage"),
    ],
)
def test_a_sample_that_cannot_be_a_row_is_named(broken: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"sample 1.0.0/0/solver_0.*{said}"):
        pad([SAMPLES[0], broken])  # type: ignore[list-item]
