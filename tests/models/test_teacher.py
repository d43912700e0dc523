"""Tests of teachers: frozen models that are loaded once and have the policy's tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.models.policy import Policy, load_policy
from selfplay.models.teacher import Teachers, load_teachers
from selfplay.models.tiny import build_model, build_tokenizer
from tests.helpers.builders import save_tiny


def student(folder: Path, teacher: Any) -> Policy:
    return load_policy("base", model=str(folder), teacher=teacher, device="cpu")


def test_a_teacher_is_frozen_and_loaded_once_for_all_its_policies(tmp_path: Path) -> None:
    base, other = save_tiny(tmp_path / "base"), save_tiny(tmp_path / "other")
    known: Teachers = {}
    first = load_teachers(student(base, str(other)), dtype="float32", known=known)
    assert isinstance(first, PreTrainedModel) and not first.training
    assert not any(weight.requires_grad for weight in first.parameters())
    second = load_teachers(
        student(base, {"a": str(other), "b": str(base), "c": str(other)}),
        dtype="float32",
        known=known,
    )
    assert isinstance(second, dict) and second["a"] is second["c"] is first
    assert second["b"] is not first and len(known) == 2
    short = load_teachers(student(base, str(other)), dtype="bfloat16", known=known)
    assert isinstance(short, PreTrainedModel) and short.dtype is torch.bfloat16
    assert short is not first and len(known) == 3


def test_a_teacher_may_have_another_architecture_and_no_chat_template(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    tokenizer = build_tokenizer(["def f("])
    larger = build_model(len(tokenizer), seed=1, layers=3)
    larger.save_pretrained(tmp_path / "large")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "large")
    made = load_teachers(student(base, str(tmp_path / "large")), dtype="float32", known={})
    assert isinstance(made, PreTrainedModel)
    assert made.num_parameters() == larger.num_parameters()


def test_a_teacher_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    tokenizer = build_tokenizer(["class x:"])
    build_model(len(tokenizer), seed=0).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(
        ConfigError, match=r"policy 'base': teacher: the tokenizer of .*other' is another one .*'"
    ) as caught:
        load_teachers(student(base, str(tmp_path / "other")), dtype="float32", known={})
    assert "\n" not in str(caught.value)


def test_a_teacher_that_another_policy_has_is_compared_too(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    tokenizer = build_tokenizer(["class x:"])
    build_model(len(tokenizer), seed=0).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    known: Teachers = {}
    load_teachers(student(base, str(base)), dtype="float32", known=known)
    with pytest.raises(ConfigError, match="is another one than the policy's"):
        load_teachers(student(tmp_path / "other", str(base)), dtype="float32", known=known)


@pytest.mark.parametrize("teacher", [None, {}])
def test_a_policy_without_a_teacher_is_an_error(tmp_path: Path, teacher: Any) -> None:
    with pytest.raises(ConfigError, match=r"policy 'base': .* set policy\.teacher to a name"):
        load_teachers(student(save_tiny(tmp_path / "base"), teacher), dtype="float32", known={})


def test_a_teacher_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base")
    with pytest.raises(ConfigError, match=r"policy 'base': teacher: no folder '.*nowhere'"):
        load_teachers(student(base, str(tmp_path / "nowhere")), dtype="float32", known={})
