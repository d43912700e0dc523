"""Tests of policies from model folders, and of the errors of folders that cannot be loaded."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError, RunError
from selfplay.models.model_outline import config_of
from selfplay.models.policy import load_model, load_policy
from selfplay.models.policy_settings import Lora
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.types import Completion, Request
from tests.helpers.builders import same, save_tiny, weights

SIZES = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 16}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), **SIZES)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def refused(model: str | Path, said: str, **settings: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_policy("base", model=str(model), **settings)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith("policy 'base'") and "\n" not in text


def test_a_policy_is_loaded_from_a_folder_and_saved_to_one(folder: Path, tmp_path: Path) -> None:
    policy = load_policy("base", model=str(folder))
    assert policy.model.dtype is torch.float32 and policy.learn and policy.version == 0
    policy.save(tmp_path / "again")
    again = load_policy("twin", model=str(tmp_path / "again"))
    assert same(weights(policy.model), weights(again.model))
    messages = [{"role": "user", "content": "def f(x)"}]
    assert policy.renderer.start(messages) == again.renderer.start(messages)


def test_a_policy_that_does_not_learn_has_no_gradients(folder: Path) -> None:
    frozen = load_policy("base", model=str(folder), learn=False)
    assert not any(p.requires_grad for p in frozen.model.parameters()) and not frozen.learn


def test_the_reference_is_a_frozen_copy(folder: Path) -> None:
    policy = load_policy("base", model=str(folder))
    policy.freeze_reference()
    assert policy.reference is not None
    before = weights(policy.reference)
    with torch.no_grad():
        next(policy.model.parameters()).add_(1)
    assert same(before, weights(policy.reference))
    assert not any(p.requires_grad for p in policy.reference.parameters())


def test_folders_without_a_model_are_refused(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", r"no folder '.*nowhere'; name a model of")
    refused("./nowhere", "no folder './nowhere'")
    refused("~/nowhere-of-the-kind", "no folder '~/nowhere-of-the-kind'")
    refused("runs/a/checkpoints/1", "no folder 'runs/a/checkpoints/1'")
    (folder / "model.safetensors").unlink()
    refused(folder, "cannot load model")
    (folder / "config.json").unlink()
    refused(folder, r"config.json is missing")


def test_damaged_files(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nonsense")
    refused(folder, "cannot load model")
    (folder / "config.json").write_text("{")
    refused(folder, "cannot load model")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "lack 11 tensors"),
        ({"intermediate_size": 32}, r"tensors in .* another shape than .* with \[.* and not \["),
        ({"vocab_size": 77}, r"tensors in .* another shape than the model, such as .*embed_tokens"),
        ({"hidden_size": "wide"}, "cannot load model"),
        ({"model_type": "no_such_type"}, "cannot load model"),
    ],
)
def test_weights_of_another_configuration(
    folder: Path, changes: dict[str, object], said: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    refused(folder, said)


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_interrupted_loading_leaves_no_report(
    folder: Path, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would report all tensors that were not read as missing."""
    config = json.loads((folder / "config.json").read_text())
    deeper = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (folder / "config.json").write_text(json.dumps({**config, **deeper}))
    tie = PreTrainedModel.tie_weights
    reports: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", reports.append)

    def tied(model: PreTrainedModel, **more: Any) -> None:
        # The first call is before the tensors are read.
        if interrupted and "missing_keys" in more:
            raise KeyboardInterrupt
        tie(model, **more)

    monkeypatch.setattr(PreTrainedModel, "tie_weights", tied)
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt if interrupted else ConfigError):
            load_model(str(folder), where="policy.model", dtype="float32")
    finally:
        logger.removeHandler(handler)
    assert len(reports) == (0 if interrupted else 1)
    assert not logger.filters


def test_a_missing_chat_template_is_found_before_the_weights_are_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "chat_template.jinja").unlink()
    loads = []
    monkeypatch.setattr(
        "selfplay.models.policy.load_model", lambda *given, **_: loads.append(given)
    )
    refused(folder, "no chat template")
    assert not loads


def test_the_error_of_a_gated_model_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gated(*_: Any, **__: Any) -> None:
        raise OSError("You are trying to access a gated repo.\nMake sure to have access to it.")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", gated)
    refused(folder, r"a gated repo; accept its licence on huggingface\.co and set HF_TOKEN")


def test_unusable_tokenizers_are_refused(folder: Path, tmp_path: Path) -> None:
    template = folder / "chat_template.jinja"
    text = template.read_text()
    template.unlink()
    refused(folder, "no chat template")
    template.write_text(text)
    larger = build_tokenizer([f"piece {n}" for n in range(50)])
    larger.save_pretrained(folder)
    refused(folder, "do not belong together")
    for path in [*folder.glob("tokenizer*"), template]:
        path.unlink()
    refused(folder, "no tokenizer in")


def set_ends(folder: Path, ends: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def test_completions_end_at_the_tokens_of_generation_config(folder: Path, tmp_path: Path) -> None:
    set_ends(folder, [7, 2, 5])
    policy = load_policy("base", model=str(folder))
    assert policy.renderer.end_ids == (2, 7, 5)  # the template's own end of turn is first
    policy.save(tmp_path / "again")
    assert load_policy("twin", model=str(tmp_path / "again")).renderer.end_ids == (2, 7, 5)
    model = policy.model.eval()
    engine = TransformersEngine()
    for ends in [policy.renderer.end_ids, (2,)]:
        engine.serve("base", model, ends)
        engine.add(
            Request(
                id=0,
                policy="base",
                prompt_ids=policy.renderer.start([{"role": "user", "content": "x"}]),
                seed=0,
                max_tokens=300,
                temperature=100.0,
            )
        )
        (said,) = iter_until(engine)
        assert not {*said.completion_ids[:-1]} & {*ends}
        engine.withdraw("base")
    (folder / "generation_config.json").unlink()
    assert load_policy("base", model=str(folder)).renderer.end_ids == (2,)


def iter_until(engine: TransformersEngine) -> list[Completion]:
    """Step the engine until requests are complete; return their completions."""
    while not (found := engine.step()):
        pass
    return found


@pytest.mark.parametrize("ends", ["abc", [True], [-1], [10**9], {"a": 1}, 1.5, [[1]]])
def test_invalid_end_tokens_are_refused(folder: Path, ends: object) -> None:
    set_ends(folder, ends)
    refused(folder, r"eos_token_id in its generation_config.json has .*tokens of the model are 0")


def test_settings_of_the_chat_template(folder: Path) -> None:
    chat = folder / "chat_template.jinja"
    chat.write_text("{{ greeting | default('Hi') }}" + chat.read_text())
    hello = load_policy("base", model=str(folder), chat_template_kwargs={"greeting": "Hello"})
    tokenizer = hello.renderer.tokenizer
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.decode(hello.renderer.start(messages)).startswith("Hello<|im_start|>")
    with pytest.raises(
        ConfigError, match=r"policy 'base': chat_template_kwargs.greting: .*greeting"
    ):
        load_policy("base", model=str(folder), chat_template_kwargs={"greting": "Hello"})


PLAIN = (
    "{% for each in messages %}{{ each.role }}: {{ each.content }}"
    "{% if each.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_a_base_model_gets_a_chat_template(folder: Path, tmp_path: Path, lora: Any) -> None:
    (folder / "chat_template.jinja").unlink()
    refused(folder, "set its chat_template to a .jinja file")
    policy = load_policy("base", model=str(folder), chat_template=PLAIN, lora=lora)
    messages = [{"role": "user", "content": "x"}]
    ids = policy.renderer.start(messages)
    assert policy.renderer.tokenizer.decode(ids) == "user: x\nassistant: "
    policy.save(tmp_path / "again")
    assert (tmp_path / "again" / "chat_template.jinja").read_text() == PLAIN
    if lora is None:
        again = load_policy("base", model=str(tmp_path / "again"))
        assert again.renderer.start(messages) == ids


def test_invalid_chat_templates_are_refused(folder: Path) -> None:
    refused(folder, "chat template", chat_template="{{ messages")
    refused(folder, "plain.jinja is the name of a file", chat_template="plain.jinja")
    with pytest.raises(ConfigError, match="a model that the warm start makes has its own"):
        load_policy("base", chat_template=PLAIN)


@pytest.mark.parametrize("dtype", ["float33", "int8", "Tensor", "nn"])
def test_an_unknown_dtype(folder: Path, dtype: str) -> None:
    refused(folder, "unknown dtype", dtype=dtype)


def test_an_unknown_device(folder: Path) -> None:
    refused(folder, "unknown device 'gpu'", device="gpu")
    if not torch.cuda.is_available():
        refused(folder, "no GPU", device="cuda")


def test_weights_are_replaced_in_place(folder: Path, tmp_path: Path) -> None:
    policy = load_policy("base", model=str(folder))
    held = next(policy.model.parameters())
    build_model(len(policy.renderer.tokenizer), seed=9, **SIZES).save_pretrained(tmp_path / "new")
    policy.load_weights(tmp_path / "new")
    assert next(policy.model.parameters()) is held
    new = load_policy("new", model=str(folder))
    assert not same(weights(policy.model), weights(new.model))


def test_weights_of_another_architecture_change_nothing(folder: Path, tmp_path: Path) -> None:
    policy = load_policy("base", model=str(folder))
    before = weights(policy.model)
    for number, sizes in enumerate(({**SIZES, "layers": 3}, {**SIZES, "hidden": 32})):
        place = tmp_path / str(number)
        build_model(len(policy.renderer.tokenizer), seed=1, **sizes).save_pretrained(place)
        with pytest.raises(RunError, match="of another architecture") as caught:
            policy.load_weights(place)
        assert "\n" not in str(caught.value)
    assert same(before, weights(policy.model))
    with pytest.raises(ConfigError, match=r"no folder '.*nowhere'"):
        policy.load_weights(tmp_path / "nowhere")


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_config_that_names_an_attention_kernel_of_a_hub_is_refused(
    tmp_path: Path, key: str
) -> None:
    """transformers would download and import its code, if the package `kernels` is installed."""
    place = save_tiny(tmp_path, **SIZES)
    path = place / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: "someone/kernel"}))
    with pytest.raises(ConfigError, match="attention kernel someone/kernel, which is code of"):
        load_model(str(place), where="policy", dtype="float32")
    with pytest.raises(ConfigError, match="attention kernel someone/kernel, which is code of"):
        config_of(str(place))
