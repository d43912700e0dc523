"""The settings of a policy: its model, and an adapter that is trained in place of all weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from selfplay.config.template_files import names_file
from selfplay.models import packaged
from selfplay.models.chat_template import check_settings


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Shape of an adapter: W x becomes W x + (alpha / rank) B A x, with B = 0 at first
    (2106.09685).

    The config `policy.lora` makes it; `adapted` reads it.
    """

    rank: int = 16
    """Rows of A and columns of B."""
    alpha: int = 32
    """alpha in W x + (alpha / rank) B A x: twice the alpha doubles the effect of the adapter."""
    targets: Sequence[str] | None = None
    """Names of the layers that get an A and a B, such as q_proj. None: all linear layers except the
    output head."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank is at least 1, not {self.rank}")
        if self.alpha < 1:
            raise ValueError(f"alpha is at least 1, not {self.alpha}; at 0 nothing is learned")
        if self.targets is not None and not self.targets:
            raise ValueError("targets names no layer; null means all linear layers")


class ChatSettings(TypedDict, total=False):
    """The settings of a policy that decide about the tokens of its prompts.

    `PolicySettings.chat` makes it; renderers and warm starts take it as keyword arguments.
    """

    chat_template: str | None
    """Chat template in place of the model's own."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Values by the name of a variable of the chat template."""
    keep_thinking: bool
    """True to keep the thinking of earlier turns in a conversation."""


def chat_key(chat: ChatSettings) -> list[str]:
    """Return texts that identify settings of prompts; none for those of the model itself."""
    template = chat.get("chat_template")
    key = [template] if template else []
    others = {
        "chat_template_kwargs": chat.get("chat_template_kwargs"),
        "keep_thinking": chat.get("keep_thinking"),
    }
    if any(others.values()):
        key.append(json.dumps(others, sort_keys=True))
    return key


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """Settings of a policy, or of an opponent that is a saved model.

    The config keys `policy`, `population.overrides` and `population.opponents` make them, and
    `load_policy` reads them.
    """

    model: str | None = None
    """Initial model: a Hugging Face name, a folder or a packaged model (`pip:NAME`). The folder of
    an adapter means its base merged with it. None: the warm start makes it."""
    learn: bool = True
    """True if a learner changes the weights."""
    dtype: str = "float32"
    """Type of the weights."""
    device: str = "auto"
    """Device of the weights; auto is the GPU if there is one."""
    lora: Lora | None = None
    """Adapter that is trained instead of the weights."""
    teacher: str | Mapping[str, str] | None = None
    """Frozen model that is the reference of the KL term under `objective.reference=teacher`, named
    as in `model`: one for all roles, or a model by role. It needs the policy's own tokenizer."""
    chat_template: str | None = None
    """Chat template, in Jinja, in place of the model's own. A config may name a .jinja file, whose
    text takes its place (`selfplay.config.template_files`)."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Values by the name of a variable of the model's chat template, such as
    {enable_thinking: false}."""
    keep_thinking: bool = False
    """False: the chat template decides if the thinking of earlier turns stays in a conversation.
    True: it stays."""

    def __post_init__(self) -> None:
        if self.model and packaged.is_packaged(self.model):
            packaged.packaged_model(self.model, where="model")
        if self.chat_template and not self.model:
            raise ValueError(
                "chat_template: a model that the warm start makes has its own; set it to null, or "
                "name a model"
            )
        for each in self.teachers.values():
            if packaged.is_packaged(each):
                packaged.packaged_model(each, where="teacher")
        if names_file(self.chat_template):
            raise ValueError(
                f"chat_template: {self.chat_template} is the name of a file; a run keeps the text "
                "of its template, which cannot change later"
            )
        check_settings(self.chat_template_kwargs or {}, where="chat_template_kwargs")

    def placed_at(self, *, device: str | None, dtype: str | None) -> "PolicySettings":
        """Return the settings with another device and another type of the weights, where given.

        `dtype` replaces float32. It also replaces `auto` of a policy whose weights all learn,
        because `auto` can mean only float32 there: a learner refuses other types.
        """
        whole = self.dtype == "auto" and self.learn and self.lora is None
        short = dtype if whole or self.dtype == "float32" else None
        return replace(self, device=device or self.device, dtype=short or self.dtype)

    @property
    def teachers(self) -> Mapping[str, str]:
        """Model of the teacher by role; "" stands for all roles."""
        if isinstance(self.teacher, Mapping):
            return self.teacher
        return {"": self.teacher} if self.teacher else {}

    @property
    def chat(self) -> ChatSettings:
        """Settings that decide about the tokens of prompts."""
        return {
            "chat_template": self.chat_template,
            "chat_template_kwargs": self.chat_template_kwargs,
            "keep_thinking": self.keep_thinking,
        }

    @property
    def context_length(self) -> int | None:
        """Longest input of the model in tokens; None if it has no limit, or no config on this
        machine."""
        from selfplay.models.model_outline import positions  # loads torch

        return positions(self.model) if self.model else None
