"""Tests of attention on a GPU: trees under every kernel that accepts them, and a whole run."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import Qwen3Config, Qwen3ForCausalLM

from selfplay.learner import batch as batches
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.tree_attention import tree_problem
from selfplay.types import Sample
from tests.helpers.builders import sample
from tests.helpers.command_process import SMOKE, metrics, run
from tests.helpers.shared_prefixes import apart, words

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
OBJECTIVE = PolicyLoss(ratio="none", clip="none")
CLOSE = {"float32": 1e-4, "bfloat16": 6e-2}
"""Largest rounding difference of gradients and of nats; a step in bfloat16 is 2 to the -8."""
PRECISIONS = pytest.mark.parametrize("precision", list(CLOSE))


def made() -> Any:
    """Return a model with heads wide enough for compiled kernels, two query heads to a key."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = Qwen3Config(**sizes, **heads, num_hidden_layers=2, initializer_range=0.3)
    model: Any = Qwen3ForCausalLM(config)
    return model.to(device=DEVICE).eval()


def trees(width: int, count: int, seed: int = 0) -> list[Sample]:
    """Return `count` trees: two samples branch off the end of the stem, one its middle."""
    rng, found = Random(seed), []
    for number in range(count):
        stem = (1 + number, *words(rng, width))
        for cut in (width // 2, width, width):
            credit = 1.0 + rng.random()
            found.append(sample((*stem[:cut], *words(rng, 7)), words(rng, 9), credit))
    return found


def learned(given: list[Sample], **settings: Any) -> tuple[Any, Any]:
    """Return the gradient of an update, and the log-probabilities before it."""
    model = made()
    learner = Learner(
        model, objective=OBJECTIVE, settings=LearnerSettings(lr=0.0, clip_norm=1e9, **settings)
    )
    assert learner.packer.packing == settings["packing"]
    logprobs = torch.tensor([value for row in learner.logprobs(given) for value in row])
    learner.update(given, step=1)
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(gradients).double(), logprobs


@PRECISIONS
@pytest.mark.parametrize("kernel", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize(
    ("width", "count", "stem"), [(40, 2, 1), (60, 1, 1), (200, 2, 128), (391, 1, 999)]
)
def test_trees_have_the_gradient_and_log_probabilities_of_rows(
    kernel: str,
    precision: str,
    width: int,
    count: int,
    stem: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trees of several widths are computed in one pass, or with a pass of its own for the stem.

    For a width of 60, rows have 65 to 127 columns. For these, torch's kernel for short rows has no
    program with two query heads to a key.
    """
    monkeypatch.setattr(batches, "STEM", stem)
    given = trees(width, count)
    exact: Any = {"precision": precision}
    rows, wanted = learned(given, packing="rows", attention="sdpa", **exact)
    packed, found = learned(given, packing="trie", attention=kernel, **exact)
    assert apart(packed, rows) < CLOSE[precision]
    assert float((found - wanted).abs().mean()) < CLOSE[precision]


@PRECISIONS
def test_flex_attention_with_activation_checkpointing(precision: str) -> None:
    given: Any = {"packing": "trie", "attention": "flex_attention", "precision": precision}
    once, _ = learned(trees(200, 2), activation_checkpointing=False, **given)
    again, _ = learned(trees(200, 2), activation_checkpointing=True, **given)
    assert apart(again, once) < CLOSE[precision]


def test_rows_of_other_shapes_need_no_program_each() -> None:
    """Programs are compiled for the first shapes, and none for later shapes of the same kinds."""
    learner = Learner(
        made(),
        objective=OBJECTIVE,
        settings=LearnerSettings(
            lr=0.0, packing="trie", attention="flex_attention", max_tokens=1500
        ),
    )
    programs = []
    for more in range(3):
        for number, width in enumerate((40, 60, 150, 170, 256, 384)):
            learner.update(trees(width + more, 1 + number % 2), step=1)
        programs.append(counters["stats"]["unique_graphs"])
    assert programs[0] > 0 and programs[1] == programs[2]


def test_every_kernel_accepts_trees() -> None:
    for kernel in ("sdpa", "eager", "flex_attention"):
        model = made()
        model.set_attn_implementation(kernel)
        assert tree_problem(model) == ""


@pytest.mark.parametrize("attention", ["null", "flex_attention"])
@pytest.mark.parametrize("policy", [["lora={rank: 4}", "dtype=bfloat16"], ["dtype=float32"]])
def test_a_run_samples_and_learns(tmp_path: Path, attention: str, policy: list[str]) -> None:
    """Engine and learner give the sampled tokens nearly the same log-probabilities."""
    outcome = run(
        "train",
        SMOKE,
        "run.steps=2",
        "run.name=gpu",
        "policy.device=cuda",
        *(f"policy.{setting}" for setting in policy),
        "learner.packing=trie",
        f"learner.attention={attention}",
        cwd=tmp_path,
    )
    assert outcome.code == 0, outcome.err
    lines = metrics(tmp_path / "runs/gpu")
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines[1:]:
        assert line["policy/base/gradient_norm"] > 0
        assert abs(line["policy/base/mismatch_kl"]) < 0.05
