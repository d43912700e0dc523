"""Tests of counts of a model's outline, compared with public checkpoints and transformers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MambaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from selfplay.errors import ConfigError
from selfplay.plan.model_shape import ModelShape, of_config, read_outline
from tests.helpers.model_shapes import (
    LLAMA_8B,
    QWEN_05B,
    QWEN_3B,
    QWEN_7B,
    QWEN_14B,
    QWEN_15B,
    QWEN_32B,
    QWEN_72B,
)


@pytest.mark.parametrize(
    ("outline", "parameters", "matrices", "cache", "adapter"),
    [
        (QWEN_05B, 494_032_768, 0.494e9, 12_288, 17.6e6),
        (QWEN_15B, 1_543_714_304, 1.544e9, 28_672, 36.9e6),
        (QWEN_3B, 3_085_938_688, 3.086e9, 36_864, 59.9e6),
        (QWEN_7B, 7_615_616_512, 7.071e9, 57_344, 80.7e6),
        (QWEN_14B, 14_770_033_664, 13.991e9, 196_608, 137.6e6),
        (QWEN_32B, 32_763_876_352, 31.985e9, 262_144, 268.4e6),
        (QWEN_72B, 72_706_203_648, 71.460e9, 327_680, 421.1e6),
        (LLAMA_8B, 8_030_261_248, 7.505e9, 131_072, 83.9e6),
    ],
)
def test_public_models(
    outline: ModelShape, parameters: int, matrices: float, cache: int, adapter: float
) -> None:
    assert outline.parameters == parameters
    assert outline.matrices == pytest.approx(matrices, rel=1e-3)
    assert outline.cache() == cache
    assert outline.adapter(32) == pytest.approx(adapter, rel=1e-3)


SMALL: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 500,
}


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SMALL, tie_word_embeddings=True),
        Qwen2Config(**SMALL, tie_word_embeddings=False),
        Qwen3Config(**SMALL, head_dim=24),
        LlamaConfig(**SMALL),
        Gemma2Config(**SMALL, head_dim=16),
        Qwen3MoeConfig(**SMALL, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32),
    ],
    ids=lambda config: f"{config.model_type}-{config.tie_word_embeddings}",
)
def test_as_many_parameters_as_transformers_makes(config: Any) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    outline = of_config(config, where="here")
    assert outline.parameters == model.num_parameters()
    assert outline.vocabulary == 500 and outline.layers == 3


def test_experts_that_a_token_does_not_use_cost_no_operations() -> None:
    config = Qwen3MoeConfig(**SMALL, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
    outline = of_config(config, where="here")
    idle = 3 * 4 * 3 * 64 * 32  # layers x unused experts x matrices x sizes
    assert outline.parameters - 500 * 64 - 64 - outline.matrices == idle


def test_a_model_without_decoder_sizes_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'mamba': not a decoder that a plan supports"):
        of_config(MambaConfig(num_hidden_layers=2), where="policy.model 'mamba'")
    with pytest.raises(ConfigError, match=r"^policy\.model: name a folder with the config\.json"):
        read_outline(str(tmp_path))


def test_a_config_that_cannot_be_read_is_refused_with_the_remedy_and_a_whole_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError(
            "We couldn't connect to 'https://hub' to load the files.\nCheck your internet "
            "connection or see how to run the library in offline mode."
        )

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    with pytest.raises(ConfigError) as caught:
        read_outline("owner/model")
    assert str(caught.value) == (
        "policy.model: name a folder with the config.json of the model, which is enough for a "
        "plan: policy.model=FOLDER; the config.json of 'owner/model' cannot be read: We couldn't "
        "connect to 'https://hub' to load the files."
    )
    monkeypatch.setattr(AutoConfig, "from_pretrained", _long_error)
    with pytest.raises(ConfigError, match=r"cannot be read: (word ){20,40}\.\.\.$"):
        read_outline("owner/model")


def test_a_hub_that_is_not_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = list[str](), list[Exception | None]()

    def head(url: str) -> None:
        asked.append(url)
        if (answer := answers.pop()) is not None:
            raise answer

    def local_only(source: str, *, local_files_only: bool, **_: Any) -> None:
        raise OSError(f"local: {local_files_only}")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", head)
    monkeypatch.setattr(AutoConfig, "from_pretrained", local_only)
    missing = HfHubHTTPError("404", response=SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]
    for answer, local in ((ConnectionError("no name"), True), (missing, False), (None, False)):
        answers.append(answer)
        with pytest.raises(ConfigError, match=f"'owner/model' cannot be read: local: {local}"):
            read_outline("owner/model")
    assert asked == [hf_hub_url("owner/model", "config.json")] * 3


def test_a_folder_is_read_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", pytest.fail)
    LlamaConfig(num_hidden_layers=3).save_pretrained(tmp_path)
    assert read_outline(str(tmp_path)).layers == 3


def _long_error(*_: Any, **__: Any) -> None:
    raise ValueError("word " * 100)


def test_operations() -> None:
    forward = QWEN_7B.forward(1e6, 0.0)
    assert forward == pytest.approx(14.1e15, rel=3e-3)  # 14.1 GFLOP per token
    # Attention is 11.5 % of the linear part at 8,096 tokens.
    fraction = QWEN_7B.forward(0, 8096**2) / QWEN_7B.forward(8096, 0)
    assert fraction == pytest.approx(0.115, rel=0.01)
    # A prefix cache moves operations of attention to another pass; their sum is the same.
    whole = QWEN_7B.attention(3000, 0)
    assert QWEN_7B.attention(1000, 0) + QWEN_7B.attention(2000, 1000) == pytest.approx(whole)
    assert whole == pytest.approx(QWEN_7B.forward(0, 3000**2))


def test_activations() -> None:
    assert QWEN_7B.activations() == pytest.approx(220 * 1024, rel=2e-3)
    assert QWEN_7B.activations() * QWEN_7B.layers == pytest.approx(6.31e6, rel=2e-3)
